"""Training of the `ranker`: does this item of the catalogue fit this query, yes or no?"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sglang_prefill_ext.modelmaker import catalogue
from sglang_prefill_ext.modelmaker.tokenizer import label_ids

STEPS = 600
BATCH = 128
LEARNING_RATE = 2e-3
SAME_CATEGORY = 0.75
REPORT_EVERY = 100


def train(model, tokenizer, seed, *, steps=STEPS, progress=lambda s: None):
    rng = random.Random(seed)
    qs = catalogue.queries("train")
    its = catalogue.items()
    qids = tokenizer([catalogue.query_part(q.text) for q in qs])["input_ids"]
    iids = tokenizer([catalogue.item_part(i.text) for i in its])["input_ids"]
    by = defaultdict(list)
    for n, i in enumerate(its):
        by[i.category].append(n)

    def graded(q):
        g = {}
        for n in by[qs[q].category]:
            g.setdefault(catalogue.relevance(qs[q], its[n]), []).append(n)
        return list(g.values())

    cache = {}
    yes, no = label_ids(tokenizer)
    opt = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    sch = torch.optim.lr_scheduler.OneCycleLR(opt, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    tot = 0
    for step in range(1, steps + 1):
        rows = []
        tg = []
        for _ in range(BATCH):
            q = rng.randrange(len(qs))
            if q not in cache:
                cache[q] = graded(q)
            n = (
                rng.choice(rng.choice(cache[q]))
                if rng.random() < SAME_CATEGORY
                else rng.randrange(len(its))
            )
            rows.append(qids[q] + iids[n])
            tg.append(catalogue.relevance(qs[q], its[n]) / catalogue.MAX_RELEVANCE)
        lp = label_logprobs(model, rows)
        t = torch.tensor(tg)
        loss = -(t * lp[:, yes] + (1 - t) * lp[:, no]).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sch.step()
        tot += (
            loss.item()
            + (torch.special.xlogy(t, t) + torch.special.xlogy(1 - t, 1 - t)).mean().item()
        )
        if step % REPORT_EVERY == 0:
            progress(f"step {step} loss {tot / REPORT_EVERY:.3f}")
            tot = 0


def label_logprobs(model, rows):
    n = torch.tensor([len(r) for r in rows])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True)
    h = model.model(ids, use_cache=False).last_hidden_state[torch.arange(len(rows)), n - 1]
    return model.lm_head(h).float().log_softmax(-1)
