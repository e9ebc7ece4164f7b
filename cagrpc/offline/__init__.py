"""Planning from files, without a server: what is read, planned and reported. For the command line and for programs."""
