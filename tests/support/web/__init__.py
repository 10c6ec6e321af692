"""The pages of the documentation and of reports, and a browser to see them."""
