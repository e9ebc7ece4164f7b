"""Planning from files, without a server, for the command line and for programs: input, plan and reports."""
