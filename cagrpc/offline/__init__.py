"""Planning without a server, for the command line and for programs: from files or a cluster that is listed, to plans,
explanations and a first configuration."""
