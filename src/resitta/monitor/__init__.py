"""What an adapter reports, and what watches over it."""
