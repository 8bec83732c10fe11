"""The command line: one file a verb, loaded when the verb is called."""
