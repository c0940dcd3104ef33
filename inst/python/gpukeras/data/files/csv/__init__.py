"""Delimited text: blocks of whole records, parsed in several threads."""
