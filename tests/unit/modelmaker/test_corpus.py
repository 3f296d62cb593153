from sglang_prefill_ext.modelmaker import catalogue, corpus


def test_the_same_lines_on_every_call() -> None:
    assert list(corpus.lines()) == list(corpus.lines())


def test_holds_the_catalogue_with_both_labels() -> None:
    lines = set(corpus.lines())
    for item in catalogue.items():
        for label in (catalogue.YES_LABEL, catalogue.NO_LABEL):
            assert catalogue.item_part(item.text) + label in lines


def test_leaves_the_test_queries_out() -> None:
    text = "\n".join(corpus.lines())
    assert not any(catalogue.query_part(q.text) in text for q in catalogue.queries("test"))


def test_holds_other_scripts() -> None:
    text = "".join(corpus.lines())
    assert all(sample in text for sample in ("ü", "Д", "今", "안", "🙂"))
