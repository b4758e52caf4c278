"""One mechanism audited by the methods of all four papers."""
