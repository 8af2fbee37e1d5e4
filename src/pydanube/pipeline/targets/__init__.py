"""What sinks write through: Delta and Iceberg tables, folders of Parquet, topics. Each takes a batch once."""
