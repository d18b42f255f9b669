"""Compare runs: read what they have written, put it into tables, figures and sentences, and show or write these."""
