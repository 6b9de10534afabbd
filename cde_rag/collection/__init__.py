"""Collections and tenants: records, embedder and store in one object; adoption of collections of Qdrant."""
