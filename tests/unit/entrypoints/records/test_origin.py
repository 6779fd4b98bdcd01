"""What a rank's records say about how it was started."""

from __future__ import annotations

import json
import random

import pytest

from cpu_train_stack.machine import topology
from cpu_train_stack.machine.facts import Core, NumaNode, Topology
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan import planner, preload
from cpu_train_stack.records import origin, record


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train --hub_token hf_abc --max_steps 3", "train --hub_token <hidden> --max_steps 3"),
        ("train --hub-token=hf_abc", "train --hub-token=<hidden>"),
        ("run main.py API_KEY=abc --password abc", "run main.py API_KEY=<hidden> --password <hidden>"),
        ("train --tokenizer_name a --max_tokens 3", "train --tokenizer_name a --max_tokens 3"),
        ("run secret.py token", "run secret.py token"),
        (
            "run x.py --auth a --pat=b",
            "run x.py --auth <hidden> --pat=<hidden>",
        ),
        (
            "run x.py --passphrase a --wandb_key b --private_key=c",
            "run x.py --passphrase <hidden> --wandb_key <hidden> --private_key=<hidden>",
        ),
        ("run x.py --bearer a --aws_access_key_id b", "run x.py --bearer <hidden> --aws_access_key_id <hidden>"),
        ("run x.py --db mysql://u:a/b@h/c", "run x.py --db mysql://<hidden>@h/c"),
        ("run x.py --path=a --author b --label_key=c", "run x.py --path=a --author b --label_key=c"),
        (
            "train --train_file https://me:a@b@host/x.csv?sig=abc&a=b --validation_file=s3://bucket/*.csv",
            "train --train_file https://<hidden>@host/x.csv?<hidden> --validation_file=s3://bucket/*.csv",
        ),
        ("run main.py --to=mlflow://me@host/a?b", "run main.py --to=mlflow://<hidden>@host/a?<hidden>"),
    ],
)
def test_secrets_are_not_recorded(command: str, shown: str) -> None:
    assert " ".join(origin.without_secrets(command.split())) == shown


@pytest.mark.parametrize(
    "argument",
    [
        "X-Api-Key: SECRET",
        "--header=PRIVATE-TOKEN: SECRET",
        "Cookie: a=b; session=SECRET",
        '--config={"hub_token": "SECRET x"}',
        "{'lr': 1, 'api_key':'SECRET'}",
        "--storage=AccountName=a;AccountKey=SECRET==",
        "--hub-token:SECRET",
        "--other=hf_SECRETSECRETSECRET",
        '{"hub_tokens": ["SECRET", "SECRET"], "lr": 1}',
        "train --hub_token SECRET --max_steps 3",
        "python x.py --password 'SECRET x'",
        "python x.py --key=SECRET",
        "me:SECRET@host",
        "DATASET_TOKEN=SECRET",
        "--env=GROUP_TOKEN=SECRET",
        '{"source_token": "SECRET"}',
        "--proxy=me:SECRET@host:3128",
        "-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----",
        "--notify=https://hooks.slack.com/services/T0/B0/SECRET",
        "--notify=https://discord.com/api/webhooks/1/SECRET",
    ],
)
def test_a_secret_inside_of_an_argument_is_not_recorded(argument: str) -> None:
    assert "SECRET" not in "".join(origin.without_secrets(["run", argument]))


@pytest.mark.parametrize(
    "flag",
    [
        *("--jwt", "--pass", "--client_key", "--connection_string", "--wandb-pw", "--key", "--hf_key"),
        *("--openai_key", "--kaggle_key", "--storage_key", "--shared_key", "--subscription-key", "--deploy_key"),
        *("--gpg_key", "--priv_key", "--basicauth", "--auth_header", "--userpass", "--psk"),
        *(
            "--totp",
            "--session_id",
            "--signature",
            "--conn_str",
            "--pem",
            "--model.openai_key",
            "--hubToken",
            "--secret_id_key",
        ),
    ],
)
def test_the_value_of_a_flag_named_like_a_secret_is_not_recorded(flag: str) -> None:
    assert origin.without_secrets(["run", flag, "SECRET", "x"]) == ["run", flag, "<hidden>", "x"]


@pytest.mark.parametrize("flag", ["--hub_tokens", "--creds", "--keys"])
def test_all_values_of_a_flag_of_several_secrets_are_hidden(flag: str) -> None:
    command = ["run", flag, "SECRET", "SECRET", "--lr", "1"]
    assert origin.without_secrets(command) == ["run", flag, "<hidden>", "<hidden>", "--lr", "1"]


@pytest.mark.parametrize(
    "value",
    [
        *("sk-proj-S3cretS3cretS3cret", "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "AIzaSyS3cretS3cretS3cretS3cretS3cret"),
        *("ASIAS3CRETS3CRETS3CR", "npm_S3cretS3cretS3cretS3cretS3cretS3cret", "pypi-AgEIcHlwaS5vcmcS3cret"),
        *("glrt-S3cretS3cretS3cret", "dckr_pat_S3cretS3cretS3cret"),
    ],
)
def test_a_value_that_begins_like_a_token_is_not_recorded(value: str) -> None:
    assert origin.without_secrets(["run", value, f"--other={value}"]) == ["run", "<hidden>", "--other=<hidden>"]


@pytest.mark.parametrize("name", ["OPENAI_KEY", "KAGGLE_KEY", "AZURE_STORAGE_KEY", "HF_TOKEN"])
def test_the_value_of_a_variable_named_like_a_secret_is_not_recorded(name: str) -> None:
    assert origin.without_secrets([f"{name}=SECRET"]) == [f"{name}=<hidden>"]


@pytest.mark.parametrize(
    "argument",
    [
        *("--text_column=key: value", "lr=1;bs=2", "a@b", '{"max_tokens": 5}', "--keywords=author: me"),
        *(
            "git@github.com:team/project",
            "stack:2.13@sha256:0123",
            "sk-learn-v2-random-forest-2024",
            "glue-sst2-0123456789",
        ),
        '{"pad_token": "<p>"}',
        *("python secret.py --lr=1", "train --max_new_tokens 5 --tokenizer_name a", "/data/webhook/rows.csv"),
        *("host:/data/a.csv", "eyJ", "10:30"),
    ],
)
def test_an_argument_without_a_secret_is_recorded(argument: str) -> None:
    assert origin.without_secrets([argument]) == [argument]


@pytest.mark.parametrize(
    "flag",
    [
        *("--max_new_tokens", "--num_virtual_tokens", "--tokens_per_step", "--token_type_ids", "--pad_token"),
        *(
            "--tokenizer_name",
            "--label_names",
            "--label_key",
            "--text_keys",
            "--sort_key",
            "--num_key_value_heads",
        ),
        *(
            "--eos_token",
            "--tokens",
            "--author",
            "--signature_columns",
            "--group_by_length",
            "--passes",
            "--keypoints",
        ),
        *("--token_level", "--special_tokens", "--monkey", "--session_length", "--path", "--use_cache"),
    ],
)
def test_the_value_of_a_flag_that_only_sounds_like_a_secret_is_recorded(flag: str) -> None:
    for command in (
        ["run", flag, "5000", "x"],
        ["run", f"{flag}=5000"],
        [f"x.py {flag} 5000", f'{{"{flag[2:]}": 5000}}'],
    ):
        assert origin.without_secrets(command) == command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:a@b@host/my rows.csv?sig=abc", "https://<hidden>@host/my rows.csv?<hidden>"),
        ("cannot read 'https://me@host/x.csv#abc'", "cannot read 'https://<hidden>@host/x.csv#<hidden>'"),
        ("s3://bucket/rows/*.csv", "s3://bucket/rows/*.csv"),
        ("rows/part-?.csv", "rows/part-?.csv"),
        ("Authorization: Bearer abc", "Authorization: <hidden>"),
        ("https://host/a@b.csv", "https://host/a@b.csv"),
        ("https://host:8443/x?sig=a@b", "https://host:8443/x?<hidden>"),
        ("https://host:8443?sig=a@b", "https://host:8443?<hidden>"),
        ("https://host?sig=a@b", "https://host?<hidden>"),
        ("https://me:12/a@host:8443/x", "https://<hidden>@host:8443/x"),
        ("https://me:a/b?c@host/x?sig=a@b", "https://<hidden>@host/x?<hidden>"),
        ("https://me:a?b@c@host/x", "https://<hidden>@host/x"),
    ],
    ids=[
        *("space", "quotes", "no secret", "no address", "header", "at in a path", "at in a query", "no path"),
        *("only a query", "number with a slash", "slash and query", "at and query"),
    ],
)
def test_addresses_are_shown_without_secrets(text: str, shown: str) -> None:
    assert origin.without_credentials(text) == shown


def test_a_rank_knows_its_plan_and_the_first_one_of_a_node_its_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    host = topology.read()
    for local_rank in (0, 1):
        place = DistributedEnvironment(local_rank, 2, local_rank, 2, launcher="torchrun")
        plan = planner.plan(place, host, {}, preload.find({}), "gloo")
        monkeypatch.setattr(origin, "_FOUND", {})
        origin.keep(origin.export(["train"], plan, host, [{"name": "shm", "status": "warning"}]))
        start = origin.start(threads=3, last_step=10)
        assert (start.rank, start.world_size, start.launcher, start.backend) == (local_rank, 2, "torchrun", "gloo")
        assert start.plan["reasons"]
        assert [start.checks, bool(start.topology)] == (
            [[{"name": "shm", "status": "warning"}], True],
            [[], False],
        )[local_rank]
        assert json.loads(record.encode(start))["threads"] == 3


def test_the_topology_of_a_machine_with_thousands_of_cpus_fits_into_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux limits a variable to 128 KiB."""
    every, order = frozenset(range(4096)), random.Random(0)
    cores = tuple(Core((cpu, cpu + 2048), (cpu, cpu + 2048), cpu // 64, cpu // 64) for cpu in range(2048))
    nodes = tuple(
        NumaNode(node, tuple(sorted(cpu for core in cores if core.node == node for cpu in core.cpus)), 1 << 40)
        for node in range(32)
    )
    host = Topology(
        "x86_64", "Intel(R) Xeon(R)", ("avx512f",), "amx_bf16", every, cores, nodes, agent_cpus=every,
        parent_cpus=every, launcher_cpus=every, group_cpus=every,
    )  # fmt: skip
    place = DistributedEnvironment(0, 32, 0, 32, launcher="torchrun")
    plan = planner.plan(place, host, {}, preload.find({}), "gloo")
    command = ["train", *(f"--file={order.getrandbits(64)}" for _ in range(500))]
    exported = origin.export(command, plan, host, [])
    assert len(exported) < 100_000
    monkeypatch.setattr(origin, "_FOUND", {})
    origin.keep(exported)
    start = origin.start()
    assert (start.command, len(start.topology["cores"])) == (command, 2048)
