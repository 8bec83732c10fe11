"""A query and a document as a reranker that is a decoder wants to read them: inside a text of its own.

Source: llama.cpp's converter, which writes the text as a chat template called "rerank", with {query} and {document}
where they go.
"""

from __future__ import annotations

import re

from caudal.errors import TemplateError

_PLACES = re.compile(r"\{(query|document)\}")


class PairText:
    """See the module.

    Args:
        source: the text with the two places.
    """

    def __init__(self, source: str) -> None:
        self._source = source

    def fill(self, query: str, document: str) -> str:
        """Return the text. What stands in the query or the document is not filled in again.

        Raises:
            TemplateError: a place is missing: the scores would be of something else.
        """
        missing = {"query", "document"}.difference(_PLACES.findall(self._source))
        if missing:
            message = f"the model's rerank template has no {{{min(missing)}}}; use another conversion of this model"
            raise TemplateError(message)
        values = {"query": query, "document": document}
        return _PLACES.sub(lambda place: values[place[1]], self._source)
