# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How prompts get their declared length on this server: token ids where somebody tells them, else fitted words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import model_vocabulary, prompts
from .endpoint import Endpoint, EndpointError


@dataclass
class Chosen:
    """The prompts of a measurement, and how they were made (``method``, ``token_source``, ``why_not``, ...)."""

    prompts: prompts.Prompts
    about: dict[str, Any]


class PromptSource:
    """Chooses the prompts of one measurement.

    ``measurement`` is its id, part of every prompt's nonce; ``texts``: the prompts of the workload's file, if it has
    one; ``model_path``: folder of the model, if it is on this host.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        workload: dict[str, Any],
        measurement: str,
        texts: list[str] | None = None,
        model_path: str = "",
    ) -> None:
        self.endpoint, self.workload, self.measurement = endpoint, workload, measurement
        self.texts, self.model_path = texts, model_path
        self.length: int = workload["prompt_tokens"]
        #: Why something better was not possible, most exact way first.
        self.why_not: list[str] = []
        self._probes = 0

    async def choose(self) -> Chosen:
        """Ask the server, read the model's folder. Raises EndpointError when the server counts no tokens,
        WorkloadError for a length that cannot be met.
        """
        if self.texts is not None:
            about = {"method": "file", "token_source": "none: lengths are the file's", "texts": len(self.texts)}
            return Chosen(self._prompts(self.length), about)
        ids: list[int] = []
        source = f"the server's {self.endpoint.engine.tokenize_path}"
        known = model_vocabulary.Words()
        if not self.endpoint.chat:
            ids = await self._server_ids()
        if not ids:
            known = model_vocabulary.read(self.model_path, prompts.WORDS)
            source = f"{known.source} of the model"
            if not self.endpoint.chat:
                ids = await self._model_ids(known)
        if ids:
            about = {"method": "token ids", "token_source": source, "vocabulary": len(ids), "why_not": self.why_not}
            return Chosen(self._prompts(self.length, ids), about)
        return await self._fitted(known)

    def _prompts(self, length: int, ids: list[int] | None = None, words: list[str] | None = None) -> prompts.Prompts:
        unique = self.workload["prefix_cache"] == "defeat"
        return prompts.Prompts(self.workload["seed"], self.measurement, length, ids, self.texts, unique, words)

    async def _server_ids(self) -> list[int]:
        """Ids that prompts can be made of, as the server tells them; [] when it does not."""
        try:
            found = prompts.vocabulary(await self.endpoint.tokenize(" " + prompts.WORD_TEXT))
        except EndpointError as error:
            return self._refused(str(error))
        if len(found) < prompts.MIN_VOCABULARY:
            return self._refused(f"the server tells only {len(found)} different tokens")
        return found

    async def _model_ids(self, known: model_vocabulary.Words) -> list[int]:
        """The same from the model's own file, if the server takes ids as a prompt and counts them as we do."""
        found = sorted(set(known.ids.values()))
        if len(found) < prompts.MIN_VOCABULARY:
            return self._refused(known.why or f"{known.source} knows only {len(found)} of our words as one token")
        self._probes += 1
        try:
            counted = await self.endpoint.count_prompt(self._prompts(self.length, found).make("probe", self._probes))
        except EndpointError as error:
            return self._refused(f"a prompt of token ids: {error}")
        if counted != self.length:
            return self._refused(f"the server counts {counted} tokens in a prompt of {self.length} token ids")
        return found

    def _refused(self, why: str) -> list[int]:
        self.why_not.append(why)
        return []

    async def _fitted(self, known: model_vocabulary.Words) -> Chosen:
        """Text of as many words as make the declared length in the server's count."""
        # Words that are one token wherever they stand make every text of so many words equally long.
        single = known.anywhere if len(known.anywhere) >= prompts.MIN_VOCABULARY else None
        if single is None and self.endpoint.chat:  # else it has been told already
            self._refused(known.why or f"{known.source} knows only {len(known.anywhere)} of our words as one token")
        tried = self._prompts(self.length, words=single)

        async def count(words: int) -> int:
            # With prompts that are alike in each wave, the n-th probe's words are those of the n-th stream.
            self._probes += 1
            return await self.endpoint.count_prompt(tried.make("probe", self._probes, length=words))

        words, exact = await prompts.fit_words(count, self.length)
        about = {
            "method": "words fitted by usage.prompt_tokens",
            "token_source": "the server's usage" + (f"; words from {known.source} of the model" if single else ""),
            "words": words,
            "fitted_exactly": exact,
            "why_not": self.why_not,
        }
        return Chosen(self._prompts(words, words=single), about)
