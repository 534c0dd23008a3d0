"""How is an action of the host mind carried out?"""

from collections.abc import Callable

from llmhostd.daemon.models import Models
from llmhostd.daemon.requests import LiveRequests
from llmhostd.domain.actions import DeclineMove, GiveUpPlacement, HostAction, QuarantineModel, RefuseRequest, StartEnded
from llmhostd.domain.commands import KeepWeights, LoadInstance, StageRequest, SubmitRequest
from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.domain.request import RequestShape
from llmhostd.domain.start import StartSeen
from llmhostd.domain.words import Message
from llmhostd.engines.frames import AdapterFile, KeepFrame, LoadFrame, StageFrame, SubmitFrame

RememberStart = Callable[[StartSeen], None]
RememberQuarantine = Callable[[ModelName, str], None]
SendFrame = Callable[[NodeId, Message], None]


class Executor:
    """Turns commands into frames, with the payload that minds need not know; refuses whom the mind refuses."""

    def __init__(
        self,
        models: Models,
        requests: LiveRequests,
        send: SendFrame,
        remember: RememberStart,
        quarantine: RememberQuarantine,
    ) -> None:
        self._models = models
        self._remember = remember
        self._quarantine = quarantine
        self._requests = requests
        self._send = send

    def __call__(self, action: HostAction) -> None:
        """Carry it out; returns at once."""
        if isinstance(action, RefuseRequest):
            self._requests.refuse(action)
        elif isinstance(action, SubmitRequest):
            self._submit(action)
        elif isinstance(action, LoadInstance):
            checkpoint = self._models.checkpoint_of(action.model)
            self._send(action.node_id, LoadFrame(command=action, checkpoint=str(checkpoint)))
        elif isinstance(action, KeepWeights):
            checkpoint = self._models.checkpoint_of(action.model)
            self._send(action.node_id, KeepFrame(command=action, checkpoint=str(checkpoint)))
        elif isinstance(action, StartEnded):
            self._remember(action.seen)
        elif isinstance(action, QuarantineModel):
            self._quarantine(action.model, action.because)
        elif isinstance(action, StageRequest):
            self._stage(action)
        elif not isinstance(action, GiveUpPlacement | DeclineMove):  # those the feed has told
            self._send(action.node_id, action)

    def _stage(self, action: StageRequest) -> None:
        request = self._requests.get(action.request.id)
        if request is None:  # as in `_submit`
            return
        tokens = request.context[action.known_tokens : action.request.context_tokens]
        self._send(action.node_id, StageFrame(command=action, tokens=tokens, adapter=self._adapter(action.request)))

    def _submit(self, action: SubmitRequest) -> None:
        request = self._requests.get(action.request.id)
        if request is None:  # it ended in the same step: the mind hears of that next
            return
        request.shape = action.request
        request.told = (action.node_id, action.instance_id)
        context, sampling, adapter = request.context, request.sampling, self._adapter(action.request)
        self._send(action.node_id, SubmitFrame(command=action, context=context, sampling=sampling, adapter=adapter))

    def _adapter(self, request: RequestShape) -> AdapterFile | None:
        return self._models.adapter_file(request.adapter) if request.adapter else None
