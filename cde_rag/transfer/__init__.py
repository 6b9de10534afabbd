"""Transfer: backups, Parquet files and data frames."""
