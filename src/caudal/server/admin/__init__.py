"""The admin API, and what a key may ask about itself. Not part of any client's API."""
