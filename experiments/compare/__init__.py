"""One mechanism audited by fresh directions and by the methods of all four papers."""
