from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Path(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PATH_UNSPECIFIED: _ClassVar[Path]
    PATH_PACKED: _ClassVar[Path]
    PATH_ENGINE: _ClassVar[Path]
PATH_UNSPECIFIED: Path
PATH_PACKED: Path
PATH_ENGINE: Path

class Texts(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class Int32Rows(_message.Message):
    __slots__ = ("values", "counts")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    counts: bytes
    def __init__(self, values: _Optional[bytes] = ..., counts: _Optional[bytes] = ...) -> None: ...

class Options(_message.Message):
    __slots__ = ("priority", "keep_prefix", "stock")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KEEP_PREFIX_FIELD_NUMBER: _ClassVar[int]
    STOCK_FIELD_NUMBER: _ClassVar[int]
    priority: int
    keep_prefix: bool
    stock: bool
    def __init__(self, priority: _Optional[int] = ..., keep_prefix: _Optional[bool] = ..., stock: _Optional[bool] = ...) -> None: ...

class EmbedOverrides(_message.Message):
    __slots__ = ("token_id", "dtype", "width", "query", "items", "item_counts")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ITEM_COUNTS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    dtype: str
    width: int
    query: bytes
    items: bytes
    item_counts: bytes
    def __init__(self, token_id: _Optional[int] = ..., dtype: _Optional[str] = ..., width: _Optional[int] = ..., query: _Optional[bytes] = ..., items: _Optional[bytes] = ..., item_counts: _Optional[bytes] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("query_text", "query_ids", "item_texts", "item_ids", "labels", "apply_softmax", "temperature", "item_first", "return_token_logprobs", "options", "embed_overrides")
    QUERY_TEXT_FIELD_NUMBER: _ClassVar[int]
    QUERY_IDS_FIELD_NUMBER: _ClassVar[int]
    ITEM_TEXTS_FIELD_NUMBER: _ClassVar[int]
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    APPLY_SOFTMAX_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIRST_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EMBED_OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    query_text: str
    query_ids: bytes
    item_texts: Texts
    item_ids: Int32Rows
    labels: Int32Rows
    apply_softmax: bool
    temperature: float
    item_first: bool
    return_token_logprobs: bool
    options: Options
    embed_overrides: EmbedOverrides
    def __init__(self, query_text: _Optional[str] = ..., query_ids: _Optional[bytes] = ..., item_texts: _Optional[_Union[Texts, _Mapping]] = ..., item_ids: _Optional[_Union[Int32Rows, _Mapping]] = ..., labels: _Optional[_Union[Int32Rows, _Mapping]] = ..., apply_softmax: _Optional[bool] = ..., temperature: _Optional[float] = ..., item_first: _Optional[bool] = ..., return_token_logprobs: _Optional[bool] = ..., options: _Optional[_Union[Options, _Mapping]] = ..., embed_overrides: _Optional[_Union[EmbedOverrides, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "computed_tokens", "cached_tokens", "path", "reason")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int
    path: Path
    reason: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., path: _Optional[_Union[Path, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "counts", "token_logprobs", "usage")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    scores: bytes
    counts: bytes
    token_logprobs: bytes
    usage: Usage
    def __init__(self, scores: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., token_logprobs: _Optional[bytes] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Prompts(_message.Message):
    __slots__ = ("texts", "ids")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    texts: Texts
    ids: Int32Rows
    def __init__(self, texts: _Optional[_Union[Texts, _Mapping]] = ..., ids: _Optional[_Union[Int32Rows, _Mapping]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("prompts", "dimensions", "options", "adapter")
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    prompts: Prompts
    dimensions: int
    options: Options
    adapter: str
    def __init__(self, prompts: _Optional[_Union[Prompts, _Mapping]] = ..., dimensions: _Optional[int] = ..., options: _Optional[_Union[Options, _Mapping]] = ..., adapter: _Optional[str] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("vectors", "width", "usage")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    vectors: bytes
    width: int
    usage: Usage
    def __init__(self, vectors: _Optional[bytes] = ..., width: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("prompts", "options", "adapter")
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    prompts: Prompts
    options: Options
    adapter: str
    def __init__(self, prompts: _Optional[_Union[Prompts, _Mapping]] = ..., options: _Optional[_Union[Options, _Mapping]] = ..., adapter: _Optional[str] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("values", "width", "class_names", "usage")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    width: int
    class_names: _containers.RepeatedScalarFieldContainer[str]
    usage: Usage
    def __init__(self, values: _Optional[bytes] = ..., width: _Optional[int] = ..., class_names: _Optional[_Iterable[str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...
