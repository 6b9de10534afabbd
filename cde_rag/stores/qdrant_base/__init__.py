"""Base of the stores whose records are Qdrant points, on a server or in the in-process engine (Qdrant Edge).

session                              one state of a store: what both engines have in common
points                               interface of operations on points; implemented by each engine
payload, point_writes                a record as the payload of a point, with its checksums; writing it
manifest                             generations, and the active one
search, words                        results of Qdrant rescored; BM25 as sparse vectors
metadata_paths, filter_translation   filters of the grammar as Qdrant's own conditions on the metadata
index, verify, locks                 parameters of indexes; damage of points; threads
"""
