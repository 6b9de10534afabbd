"""A store whose records are points of Qdrant, be they a server's or those of the engine in this process.

fields, translation     filters of the grammar as conditions that Qdrant answers fast
rows                    a record as the payload of a point, with its checksums
manifest                generations, and which is active
hnsw                    parameters of indexes
points                  what has to be done with points; each store does it in its own way
store                   the rest, which is the same for all
"""
