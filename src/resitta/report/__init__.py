"""Reports: tables, figures, and a page that needs nothing but itself."""
