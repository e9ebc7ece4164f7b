"""One file a command: its summary, its flags, and the call of what does the work, which is imported only when it runs.
`main` has their names; flags that several share are in `flags`."""
