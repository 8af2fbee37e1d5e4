"""Who may do what: principals, actions, resources, and the one function that decides."""
