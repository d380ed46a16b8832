"""From the word on the command line to a model: a document, a recorded model, or a recipe to build one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from api.terminal.files import STANDARD_STREAM, read_text
from planner.errors import InputError
from profiles.model import Grain, ModelRecord, ModelSource, ProfiledModel

if TYPE_CHECKING:
    from profiles.importers.base import ImportOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a source is to be read: the first four are about documents, `seed` about models that are built, the others
    about both."""

    format: str | None = None
    minibatch_size: int = 1
    device_type: str | None = None
    model: str | None = None
    sequence_length: int | None = None
    dtype: str | None = None
    grain: Grain = Grain.BLOCK
    seed: int = 0


def read_source(name: str, how: Reading) -> ProfiledModel | ModelRecord | ModelSource:
    """What `name` stands for; InputError when it is nothing. A model that can be built comes as its recipe, unbuilt."""
    from profiles.recipes import is_exported, is_factory
    from profiles.sources import CATALOGUE, EXPORTED, FACTORY, catalogue_model_names, load_source

    if how.format == CATALOGUE or (how.format is None and name in catalogue_model_names()):
        return load_source(name, format=CATALOGUE)
    if how.format == EXPORTED or (how.format is None and is_exported(name)):
        return _recipe(name, None, how)
    found = _in_files(name, how)
    if found is not None:
        return found
    text = _text_of(name)
    if text is not None:
        return _document(name, text, how)
    if how.format == FACTORY or (how.format is None and is_factory(name)):
        return _recipe(name, None, how)
    return load_source(name, format=how.format)  # says what is wrong with the name


def _in_files(name: str, how: Reading) -> ProfiledModel | ModelRecord | None:
    """The model of a format that is several files, no text, or packed; None where `name` is no such thing."""
    from profiles.importers.reading import read_path

    if name == STANDARD_STREAM:
        return None
    try:
        return read_path(Path(name), format=how.format, options=_import_options(how))
    except InputError as fault:
        raise InputError(f"{name!r}: {fault}", pointer=fault.pointer) from None


def _import_options(how: Reading) -> ImportOptions:
    from profiles.importers.base import ImportOptions

    return ImportOptions(
        device_type=how.device_type,
        minibatch_size=how.minibatch_size,
        model=how.model,
        sequence_length=how.sequence_length,
        grain=how.grain,
    )


def _text_of(name: str) -> str | None:
    """The text of standard input, of a file, or of a folder's config.json; None where there is no such file."""
    from profiles.recipes import CONFIGURATION

    path = Path(name) / CONFIGURATION if Path(name).is_dir() else Path(name)
    if name == STANDARD_STREAM:
        return read_text(name)
    return read_text(str(path)) if path.exists() else None


def _document(name: str, text: str, how: Reading) -> ProfiledModel | ModelRecord | ModelSource:
    from profiles.importers.base import read_text as imported
    from profiles.recipes import is_configuration
    from profiles.sources import TRANSFORMERS

    try:
        if how.format == TRANSFORMERS or (how.format is None and is_configuration(text)):
            return _recipe(name, text, how)
        return imported(text, format=how.format, options=_import_options(how))
    except InputError as fault:
        raise InputError(f"{name!r}: {fault}", pointer=fault.pointer) from None


def _recipe(name: str, text: str | None, how: Reading) -> ModelSource:
    from profiles.recipes import model_source

    return model_source(
        name,
        text=text,
        sequence_length=how.sequence_length,
        dtype=how.dtype or "float32",
        grain=how.grain,
        seed=how.seed,
    )
