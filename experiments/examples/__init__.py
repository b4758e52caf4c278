"""Programs to copy: checks and audits of training code in other frameworks."""
