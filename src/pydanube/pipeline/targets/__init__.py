"""What pipelines write to: Delta and Iceberg tables, folders of Parquet, topics. Each batch is there once."""
