"""One module per engine; each is imported only when a recipe names it."""
