"""What an endpoint's protocol wants beyond the answer itself: fields of strict clients, names of errors, exact limits."""
