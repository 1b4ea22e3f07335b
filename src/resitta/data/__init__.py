"""Where images come from: data sets, corruptions, and the order in which a stream brings them."""
