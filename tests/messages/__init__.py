"""Every message that an error of Argosy can carry: the places that make them, and for each place a way to come by it."""
