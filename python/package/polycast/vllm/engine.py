"""The workers' side: new weights in a vLLM worker."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from polycast import tensors
from polycast._agent import Object
from polycast._backends import Link
from polycast.errors import Invalid

if TYPE_CHECKING:
    from polycast.vllm._patches import Loaded

_LOG = logging.getLogger("polycast.vllm")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Settings that the trainer sends once: the topic that it publishes, and the application of the topic. With `patches` a worker that has
    a version loads only the differences of the next one, if they are at most `patches_part` of all elements."""

    topic: str = "weights"
    app: str = str(uuid.UUID(int=0))
    patches: bool = False
    patches_part: float = 0.1


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Message that the trainer sends for each version: the number of the object, and the seconds that a worker waits for it."""

    data_id: int = 0
    version: int = 0
    timeout: float = 60.0


class PolycastEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Weights arrive at the host's agent while vLLM serves, once for all workers of the host, and are there before the workers have to load
    them. A worker that came later, or whose host was away, gets them then from any host that has them."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    loaded_as: str = ""
    """Way in which the last version was loaded: `whole`, or `patches`."""

    patched_elements: int = 0
    """Number of elements in the patches of the last version."""

    whole_because: str = ""
    """Reason that the last version was loaded whole although patches are on."""

    _link: Link | None = None
    _taken: int | None = None
    _before: int | None = None
    _patches: bool = False
    _part: float = 0.0
    # Set while vLLM rebuilds the model's layers in this update.
    _reloads: bool = False
    _updates: int = 0
    # Version that the model has, and the one that it will have after the update. None if unknown.
    _base: Loaded | None = None
    _coming: memoryview | None = None
    # Model in which patches have been seen to get to their places, and the reason that none are tried any longer.
    _shown: Any = None
    _refused: str = ""

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        if not 0 < init_info.patches_part <= 1:
            raise Invalid(f"patches_part={init_info.patches_part} is no part of a model: give a number above 0 and up to 1")
        self.shutdown()
        self._patches, self._part = init_info.patches, init_info.patches_part
        self._link = Link(init_info.topic, init_info.app, None, _LOG)
        # A subscriber has each version before the trainer tells it to load it.
        self._link.versions()

    def start_weight_update(self) -> None:
        self._reloads, self._updates, self._coming = False, 0, None
        # Patches go into the layers as they are. Until the version is here, it is not known whether there are any.
        if not self._patches:
            self._begin_reload()

    def _begin_reload(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if not self._reloads:
            initialize_layerwise_reload(self.model)
            self._reloads = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # As in the base class, which cannot wait for a device if there is none.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            import torch

            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._link is None:
            raise Invalid("the trainer has not said where its weights come from: init_weight_transfer_engine comes first")
        # An agent that was restarted knows neither this process nor its subscription.
        self._link.subscribe()
        found = self._link.agent.fetch(update_info.data_id, timeout=update_info.timeout)
        # If this raises, the model holds parts of both versions.
        base, self._base = self._base, None
        self._updates += 1
        if self._patches:
            self._load_what_differs(base, found, update_info.version)
        else:
            self._load_whole(found)
        if self._taken != update_info.data_id:
            self._taken, self._before = update_info.data_id, self._taken

    def _load_whole(self, found: Object) -> None:
        self._begin_reload()
        self.model.load_weights(tensors.each(found.map(writable_copy=True), "torch"))
        self.loaded_as, self.patched_elements = "whole", 0

    def _load_what_differs(self, base: Loaded | None, found: Object, version: int) -> None:
        from polycast.vllm._patches import Whole

        # A mapping of its own: it is compared with the next version, and does not show what a loader writes into the other one. The bytes
        # stay as long as the mapping, even if the host's agent deletes the file.
        view = found.map(writable_copy=True)
        self.whole_because = ""
        try:
            self.patched_elements = self._load_patches(base, view)
            self.loaded_as = "patches"
        except Whole as why:
            self.whole_because = str(why)
        if self.whole_because:
            # Only after the exception is gone, which may keep patches on the device.
            _LOG.info("version %d is loaded whole: %s", version, self.whole_because)
            self._load_whole(found)
        self._coming = view

    def _load_patches(self, base: Loaded | None, view: memoryview) -> int:
        from polycast.vllm import _patches
        from polycast.vllm._patches import Whole

        if self._refused:
            raise Whole(self._refused)
        if self._reloads or self._updates > 1:
            raise Whole("the update has several parts")
        if base is None or base.model is not self.model:
            raise Whole("this worker has loaded no version into this model yet")
        _patches.loader()
        _patches.refuse_model(self.model, self.model_config)
        if _patches.sums(self.model) != base.sums:
            raise Whole("something else has changed the model since")
        found = _patches.changes(base.view, view, self._part)
        try:
            if found and self._shown is not self.model:
                if not _patches.show(self.model, base.view, self.device):
                    raise Whole("its elements are not where the file has them, or its loaders write in a way of their own")
                self._shown = self.model
            return _patches.load(self.model, found, self.device)
        except Exception as error:
            # A half-written model is loaded whole. The model's loaders are the same next time.
            self._refused = str(error) if isinstance(error, Whole) else f"{type(error).__name__}: {error}"
            _LOG.warning("this model takes no patches, and gets whole versions from now on: %s", self._refused)
            raise Whole(self._refused) from error

    def finish_weight_update(self) -> None:
        if self._reloads or not self._patches:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)
            self._reloads = False
        if self._coming is not None and self._updates == 1:
            from polycast.vllm import _patches

            self._base = _patches.Loaded(self.model, self._coming, _patches.sums(self.model))
        self._coming = None
        if self._link is not None and self._before is not None:
            self._link.agent._forget(self._before)
            self._before = None

    def shutdown(self) -> None:
        self._base = self._coming = None
        self._shown, self._refused = None, ""
        if self._link is not None:
            self._link.close()
            self._link = None
