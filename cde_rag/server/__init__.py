"""HTTP and MCP servers over collections; `cde-rag serve` and `cde-rag mcp` are the commands.

    registry = Registry({"papers": Collection.open(FaissStore("papers.faiss"))}, TokenBatcher())
    app = create_app(Service(registry, ServerOptions()))  # any ASGI server runs it

One thread runs the models: concurrent requests are embedded in common batches, up to a token budget. Stores are read
and written in other threads, so that the event loop only moves bytes.
"""
