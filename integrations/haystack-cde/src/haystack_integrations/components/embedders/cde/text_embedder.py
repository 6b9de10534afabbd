"""CDETextEmbedder: queries embedded in the context of the documents."""

from typing import Any

from haystack import component, default_from_dict, default_to_dict

from cde_rag import Context, ContextualEmbedder, EmbedderOptions
from cde_rag.embedders.active import loaded


@component
class CDETextEmbedder:
    """Embeds a query in the context that the CDEDocumentEmbedder wrote.

    Args:
        context: Path of the file of the context.
        model: A name or folder in place of the model that the context names; the name of what an API serves, as for
            the CDEDocumentEmbedder.
        device: Device of PyTorch, such as "cuda"; by default the fastest that is there.

    Examples:
        vector = CDETextEmbedder("papers.context.safetensors").run("how do I parse a date?")["embedding"]
    """

    def __init__(self, context: str, *, model: str | None = None, device: str | None = None) -> None:
        self.context = str(context)
        self.model = model
        self.device = device
        self._embedder: ContextualEmbedder | None = None

    def warm_up(self) -> None:
        """Load the context and its model.

        Raises:
            ContextMissingError: There is no such file; the CDEDocumentEmbedder writes it.
            ModelError: The context was made by what an API serves, which is to be named.
        """
        if self._embedder is None:
            context = Context.load(self.context)
            self._embedder = loaded(context, model=self.model, options=EmbedderOptions(device=self.device))

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """Embed a query.

        Raises:
            ContextMissingError: There is no context; the CDEDocumentEmbedder writes it.
            TypeError: That is no text.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"CDETextEmbedder expects one text, found {type(text).__name__}. Documents are embedded by the "
                "CDEDocumentEmbedder."
            )
        self.warm_up()
        assert self._embedder is not None
        (vector,) = self._embedder.embed_queries([text])
        meta = {"model": self._embedder.context.identity.name, "fingerprint": self._embedder.fingerprint}
        return {"embedding": vector.tolist(), "meta": meta}

    def to_dict(self) -> dict[str, Any]:
        """Serialise the component."""
        return default_to_dict(self, context=self.context, model=self.model, device=self.device)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CDETextEmbedder":
        """Restore the component."""
        return default_from_dict(cls, data)
