"""Audits one mechanism with fresh directions and with the methods of all four papers."""
