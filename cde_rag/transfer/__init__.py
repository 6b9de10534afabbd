"""Transfer: backups, Parquet files, data frames, and adoption of collections of Qdrant."""
