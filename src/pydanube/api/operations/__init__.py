"""What every face can be asked: the fields of each request, the call it becomes, the fields of its answer."""
