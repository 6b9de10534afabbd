"""Base of the stores whose records are Qdrant points, on a server or in the in-process engine (Qdrant Edge).

metadata_paths, filter_translation   filters of the grammar as Qdrant's own conditions on the metadata
payload                              a record as the payload of a point, with its checksums
points_manifest                      generations, and the active one
hnsw                                 parameters of indexes
points                               interface of operations on points; implemented by each store
store                                the rest, common to all
"""
