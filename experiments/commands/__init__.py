"""Commands: a module each, with its flags and a short main."""
