"""One subscription at work: what it reads ahead, who gets what, and what its consumers say of it."""
