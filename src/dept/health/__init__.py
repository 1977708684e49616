"""Do no harm: is the input sound, and did adaptation help? Pure functions and the pages and files around them."""
