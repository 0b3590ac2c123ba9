import random
import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ordinary_commands import ordinary_lines
from tests.reliability.growth import sample
from tests.reliability.stepper import Stepper
from traceprof.secrets import (
    MASK,
    kept_variables,
    masked_command,
    masked_name,
    masked_text,
    secrets_of,
)
from traceprof.tokens import SHAPES


def test_only_variables_about_training_are_kept():
    kept = kept_variables(
        {
            "NCCL_DEBUG": "INFO",
            "RANK": "3",
            "SLURM_JOB_ID": "17",
            "SLURM_TOPOLOGY_ADDR": "core.leaf2.node7",
            "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
            "HOME": "/home/someone",
            "AWS_SECRET_ACCESS_KEY": "x",
            "SLURM_JWT": "eyJhbGciOi",
            "CUDA_API_KEY": "x",
            "TORCH_AUTH_TOKEN": "x",
            "NCCL_PROXY": "http://user:pw@proxy:3128",
            "TORCH_HUB": "hf_abcdefghijkLMNOP",
        }
    )
    assert kept == {
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
        "SLURM_JOB_ID": "17",
        "SLURM_TOPOLOGY_ADDR": "core.leaf2.node7",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
        "NCCL_PROXY": "http://***@proxy:3128",
        "TORCH_HUB": "***",
    }


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        (
            ["train.py", "--api-key", "abc", "--lr", "1"],
            ["train.py", "--api-key", "***", "--lr", "1"],
        ),
        (["--wandb_token=xyz"], ["--wandb_token=***"]),
        (["--num-keys", "3", "--tokenizer=bpe"], ["--num-keys", "3", "--tokenizer=bpe"]),
        (["s3://user:pw@host/x"], ["s3://***@host/x"]),
        (["sk-abcdefgh12345678"], ["***"]),
        (["--to=ghp_abcdefgh12345678"], ["--to=***"]),
        (["--mfa", "123456", "--oauth2=abcdef"], ["--mfa", "***", "--oauth2=***"]),
        (["--password", "--token", "x"], ["--password", "***", "***"]),
    ],
)
def test_secrets_on_the_command_line_are_masked(command, masked):
    assert masked_command(command) == masked


def test_what_is_hidden_of_a_command_line_is_known():
    command = ["train", "--api-key", "k1", "--token=abc", "https://me:pw@host/x", "--num-keys", "3"]
    assert [secret.hidden for secret in secrets_of(command)] == [("k1",), ("abc",), ("me:pw",)]


S = "S3cr3tValue99"
HEX = "0123456789abcdef0123456789abcdef01234567"
PLANTED = (S, HEX, "ghp_abcdefgh12345678", "hf_abcdefgh1jkl")
COMMANDS = [
    ["curl", "--header", f"Authorization: Bearer {S}"],
    ["curl", "-H", f"X-Api-Key: {S}"],
    ["--header=Authorization: Basic " + S],
    ["wget", f"https://h/x?access_token={S}&a=1"],
    [
        f"https://b.s3.amazonaws.com/k?X-Amz-Signature={S}&X-Amz-Credential=AKIAABCDEFGHIJKLMNOP%2F2026&X-Amz-Expires=3"
    ],
    ["env", f"TOKEN={S}", "python", "t.py"],
    [f"wandb.api_key={S}"],
    [f"+trainer.logger.token={S}"],
    ["mysql", f"-p{S}"],
    ["mysql", "-p", S],
    ["t.py", f"-p{S}"],
    ["--hub-pw", S],
    ["--hub_pwd=" + S],
    ["bash", "-c", f"export TOKEN={S}; python t.py --api-key {S} --lr 1"],
    ["bash", "-c", f"curl -H 'Authorization: Bearer {S}' http://x"],
    ["python", "-c", f"api_key='{S}'"],
    ["--config", f'{{"api_key": "{S}", "lr": 1}}'],
    ["--conn", f"Server=x;User Id=u;Password={S};AccountKey={S}"],
    [f"postgres://u:{S}@h/db"],
    ["-u", "me:" + S],
    ["docker", "run", "-e", "HF_TOKEN=" + S, "img"],
    [f"-Dpassword={S}"],
    ["--accessToken", S],
    ["--clientSecret=" + S],
    ["--apikey", S],
    [f"https://x/y#access_token={S}"],
    [f"https://acc.blob.core.windows.net/c?sv=1&sig={S}"],
    ["https://hooks.slack.com/services/T00/B00/" + S],
    ["wandb", "login", HEX],
    ["ghp_abcdefgh12345678"],
    ["x", "hf_abcdefgh1jkl"],
    [f"--env=API_TOKEN={S}"],
    ["--opt", "key:" + S],
    [f"secret: {S}"],
    ["srun", "--export", f"ALL,WANDB_API_KEY={S}", "python"],
    ["--password", S],
    ["--pass", S],
    [f"--wandb-key={S}"],
    ["redis://:" + S + "@h:6379/0"],
    ["--proxy-user", "u:" + S],
    ["--auth", f"u:{S}"],
    ["--cookie", f"session={S}"],
    ["--cookie", f"a=b; sid={S}"],
    ["-H", f"Cookie: a=b; x={S}"],
    ["--http-header", f"Proxy-Authorization: Basic {S}"],
    ["python", "t.py", f"token={S}", "lr=1"],
    ["t.py", "--set", f"hub.private_token={S}"],
    ["t.py", f"--hparams=lr=1,password={S}"],
    ["a", "git", "clone", f"https://oauth2:{S}@gitlab.com/x.git"],
    ["sh", "-c", f"mysql -p{S} db"],
    ["sh", "-c", f"PGPASSWORD={S} psql"],
    ["sh", "-c", f"sshpass -p '{S}' ssh h"],
    ["t.py", "--jwt", "eyJhbGciOi.eyJzdWIi." + S],
    ["t.py", f"--aws-secret-access-key={S}"],
    ["t.py", f"AWS_SECRET_ACCESS_KEY={S}"],
    ["t.py", "--azure-sas", S],
    ["t.py", f"--license-key={S}"],
    ["t.py", f"--webhook=https://x/{S}"],
    ["t.py", "--slack-webhook", f"https://x/{S}"],
    ["t.py", f"--db-dsn=mysql://u:{S}@h"],
    ["t.py", f"--neptune.api_token={S}"],
    ["t.py", "--args", f"--token {S} --lr 1"],
    # a name and its value side by side
    ["t.py", "--set-env", "MY_SECRET", S],
    ["docker", "run", "-e", "TOKEN", S],
    ["mpiexec", "-genv", "HF_TOKEN", S, "python"],
    ["aws", "configure", "set", "aws_session_token", S],
    ["sh", "-c", f"echo machine h login u password {S} > ~/.netrc"],
    ["--netrc", f"machine api.wandb.ai login user password {HEX}"],
    ["t.py", "password", S],
    ["curl", "-H", "Authorization:", "Bearer", S],
    # JSON, YAML and XML
    ["--json", f'{{"auth":{{"username":"me","value":"{S}"}},"lr":1}}'],
    ["--json", f'{{"api_tokens":["{S}","{S}"]}}'],
    ["--json", f'[{{"name":"API_TOKEN","value":"{S}"}}]'],
    ["--json", f'[{{"value":"{S}","name":"API_TOKEN"}}]'],
    ["--json", f'"{{\\"password\\": \\"{S}\\"}}"'],
    ["--yaml", f"- name: API_TOKEN\n  value: {S}"],
    ["--xml", f"<password>{S}</password>"],
    ["--xml", f'<add key="Password" value="{S}"/>'],
    ["t.py", f"hub={{token:{S},private:true}}"],
    # programs in arguments
    ["python", "-c", f"import os; os.environ['HF_TOKEN']='{S}'"],
    ["python", "-c", f"os.putenv('HF_TOKEN', '{S}')"],
    ["python", "-c", f"login('{S}')"],
    ["python", "-c", f'x.set_password("{S}")'],
    ["bash", "-c", f"python t.py --api-key=$(echo {S}) --lr 1"],
    ["bash", "-c", f"export TOKEN=\\\n{S}"],
    ["bash", "-c", f"read TOKEN <<< {S}"],
    # who logs in
    ["curl", f"-ume:{S}"],
    ["curl", f"-u:{S}"],
    ["t.py", f"--user=me:{S}"],
    ["smbclient", "-U", f"u%{S}"],
    ["docker", "login", "-u", "me", "-p", S],
    ["wandb", "login", "--relogin", HEX],
    ["neptune", "login", S],
    ["redis-cli", "-a", S],
    ["ldapsearch", "-w", S],
    ["sqlcmd", "-P", S],
    # addresses, shapes and names
    [f"https://h/x?code={S}"],
    [f"https://hooks.zapier.com/hooks/catch/1/{S}/"],
    [f"https://api.telegram.org/bot123456:AA{HEX}/send"],
    [f"https://h/?next=%2Fx%3Ftoken%3D{S}"],
    [f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{S}"],
    ["--hftoken", S],
    [f"OTEL_EXPORTER_OTLP_HEADERS=x-team={S}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_no_secret_of_a_list_is_shown(command):
    masked = masked_command(command)
    assert not [part for part in masked if any(secret in part for secret in PLANTED)]
    assert len(masked) == len(command)
    hidden = [part for secret in secrets_of(command) for part in secret.hidden]
    assert hidden


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc-per-node=2 t.py --num-keys 3 --tokenizer=bpe -p 8080 -p29500",
        "python -m pkg --path=/a/b:c --url https://h/x?a=1&b=2 model.size=3 --pin-memory True",
        "t.py -pretrained --keypoints 17 --passes=2 --print-freq 10 --config configs/key.yaml",
        "t.py --monkey x --author=me --bypass --data s3://bucket/key --max-tokens 512",
        "t.py --pad-token 0 --eos_token_id=2 --max-token=128 --sort-key -1 12:30:01 a:b",
        "nsys profile -t cuda,nvtx -o out python -u main.py --forward-passes 3 --local-rank=0",
        "python t.py token classification --mode key value -a x -w 4 -P 8 -b 2",
        "docker login registry.example.com -u me --gpus=all -u 1000:1000 --user=0:0",
        "aws configure set region us-east-1 f(x) tokens=[1,2] name=model value=3",
    ],
)
def test_what_is_no_secret_is_shown(line):
    assert masked_command(line.split()) == line.split()


_VALUES = st.text(string.ascii_letters + string.digits, min_size=9, max_size=30)
_NAMES = st.sampled_from(["API_KEY", "token", "db-password", "accessToken", "hub_pw", "x.secret"])
_FORMS = st.sampled_from(
    [
        "--{n}={v}",
        "{n}={v}",
        "https://h/p?{n}={v}&b=1",
        '{{"{n}": "{v}"}}',
        "{n}: {v}",
        "a=1,{n}={v}",
    ]
)


@given(_NAMES, _VALUES, _FORMS)
def test_a_secret_is_hidden_in_every_form(name, value, form):
    text = form.format(n=name, v=value + "_x")
    assert value not in masked_text(text).replace(name, "")
    assert value not in " ".join(masked_command(["run", text])).replace(name, "")


@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_command_is_masked_and_what_is_hidden_is_known(command):
    masked = masked_command(command)
    assert len(masked) == len(command)
    for secret in secrets_of(command):
        rebuilt = secret.shown
        for part in secret.hidden:
            rebuilt = rebuilt.replace(MASK, part, 1)
        assert (
            rebuilt == secret.argument or MASK in "".join(secret.hidden) or MASK in secret.argument
        )


@pytest.mark.parametrize(
    "text", ["=" * 20_000, "a=" * 10_000, '"' * 20_000, "a:" * 10_000, "-p" * 9000]
)
def test_a_long_argument_takes_no_long_time(text):
    assert len(masked_command([text, text + " " + text])) == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("A" * 200_000, "A" * 200_000),
        ("a=" * 100_000, "a=" * 100_000),
        ("a=" * 100_000 + "password=hunter2", "a=" * 100_000 + "password=***"),
        ("_-" * 50_000 + " https://me:hunter2@host", "_-" * 50_000 + " https://***@host"),
    ],
)
def test_long_texts_take_no_longer_than_as_many_short_ones(text: str, shown: str) -> None:
    """They would not end in minutes, were anything in them tried from each place to the end."""
    assert masked_text(text) == shown


def test_a_long_name_is_read_from_its_beginning() -> None:
    name = "password" + "_of_x" * 40
    assert masked_text(f"{name}=hunter22") == f"{name}={MASK}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"fetch https://u:{S}@host/x", "fetch https://***@host/x"),
        (f"login password={S}", "login password=***"),
        (f"Authorization: Bearer {S}", "Authorization: ***"),
        (f"token={S}", "token=***"),
        ("ghp_abcdefgh12345678", "***"),
        ("token=512", "token=512"),
        ("attention key: heads", "attention key: heads"),
        ("layer:token:Embedding8bit", "layer:token:Embedding8bit"),
        ("Embedding(token=padded)", "Embedding(token=padded)"),
    ],
)
def test_names_of_ranges_keep_what_is_no_secret(name: str, shown: str) -> None:
    assert masked_name(name) == shown


def drawn(alphabet: str, length: int) -> str:
    """Return as many characters as a service draws; the same each time, and nobody's."""
    rng = random.Random(f"{alphabet} {length}")
    return "".join(rng.choice(alphabet) for _ in range(length))


ALL = string.ascii_letters + string.digits
HEXES = "0123456789abcdef"
BARE = {
    "Vault": "hvs." + drawn(ALL, 90),
    "Vault, batch": "hvb." + drawn(ALL, 138),
    "Vault, of old": "s." + drawn(ALL, 24),
    "Databricks": "dapi" + drawn(HEXES, 32),
    "Databricks, numbered": "dapi" + drawn(HEXES, 32) + "-2",
    "Linear": "lin_api_" + drawn(ALL, 40),
    "GitLab, deploy": "gldt-" + drawn(ALL, 20),
    "GitLab, runner": "glrt-" + drawn(ALL, 20),
    "Sonar": "sqp_" + drawn(HEXES, 40),
    "Sonar, user": "squ_" + drawn(HEXES, 40),
    "Shopify": "shpat_" + drawn(HEXES, 32),
    "Shopify, shared": "shpss_" + drawn(HEXES, 32),
    "Tailscale": "tskey-auth-" + drawn(ALL, 12) + "-" + drawn(ALL, 32),
    "Atlassian": "ATATT3" + drawn(ALL, 186),
    "Bitbucket": "ATBB" + drawn(ALL, 32),
    "Pulumi": "pul-" + drawn(HEXES, 40),
    "Mailgun": "key-" + drawn(HEXES, 32),
    "Fireworks": "fw_" + drawn(ALL, 24),
    "Groq": "gsk_" + drawn(ALL, 52),
    "xAI": "xai-" + drawn(ALL, 80),
    "age": "AGE-SECRET-KEY-1" + drawn("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "Perplexity": "pplx-" + drawn(ALL, 48),
    "Grafana": "glc_" + drawn(ALL, 60),
    "Notion": "ntn_" + drawn(string.digits, 11) + drawn(ALL, 35),
    "1Password": "ops_eyJ" + drawn(ALL, 250),
    "Slack, app": "xapp-1-A01-123-" + drawn(HEXES, 40),
    "Twilio": "SK" + drawn(HEXES, 32),
    "Docker": "dckr_oat_" + drawn(ALL, 32),
    "Fireworks, cut short": "fw_" + S,
    "Notion, of old": "secret_" + drawn(ALL, 43),
    "Notion, cut short": "secret_" + S,
    "Stripe, of a payment": "pi_" + drawn(ALL, 24) + "_secret_" + drawn(ALL, 25),
    "Stripe, of a webhook": "whsec_" + drawn(ALL, 32),
    "AWS Bedrock": "ABSK" + drawn(ALL, 110),
    "OpenAI": "sk-proj-" + drawn(ALL, 60),
    "New Relic": "NRAK-" + drawn(string.ascii_uppercase + string.digits, 27),
}
"""Tokens as services give them out, which stand somewhere without a name."""


@pytest.mark.parametrize("service", BARE)
def test_a_bare_token_of_a_service_is_hidden_wherever_it_stands(service: str) -> None:
    token = BARE[service]
    secret = token[-12:]
    for command in (
        *(["t.py", token], ["t.py", f"--to={token}"], ["t.py", "--to", token]),
        *(["sh", "-c", f"echo {token} | t.py"], ["t.py", f'{{"to": "{token}"}}']),
        *(["t.py", f"https://h/{token}/x"], ["t.py", f"a,{token},b"]),
    ):
        assert secret not in " ".join(masked_command(command)), command
    assert secret not in masked_text(f"it is {token}.")
    assert secret not in masked_name(f"upload with {token}")


def test_every_token_that_is_listed_begins_as_its_line_says() -> None:
    """What a pattern matches, made of the pattern, is hidden in arguments and in names."""
    assert len(SHAPES) > 70
    for first, rest in SHAPES:
        stepper = Stepper(first + rest)
        token = sample(stepper.parsed, stepper.flags, "A0a")
        token = token[:-1] + "7" if "\\d" in first else token  # what is looked ahead to
        assert MASK in masked_command([token])[0], token
        assert MASK in masked_name(f"x {token}"), token


@pytest.mark.parametrize(
    "command",
    [
        ["java", f"jdbc:oracle:thin:me/{S}@h:1521/db"],
        ["t.py", f"--db=jdbc:oracle:thin:me/{S}@//h:1521/db"],
        ["t.py", f"https://outlook.office.com/webhook/{S}/IncomingWebhook/{S}"],
        ["t.py", f"https://outlook.office365.com/webhook/{S}"],
        ["t.py", f"https://x.webhook.office.com/webhookb2/{S}"],
        ["openssl", "enc", "-aes-256-cbc", "-k", S, "-in", "a"],
        ["openssl", "enc", "-K", HEX, "-iv", "0"],
        ["openssl", "rsa", "-passin", f"pass:{S}"],
        ["sh", "-c", f"openssl enc -k {S} -in a"],
    ],
)
def test_other_secrets_are_hidden_too(command: list[str]) -> None:
    masked = " ".join(masked_command(command))
    assert S not in masked
    assert HEX not in masked


W = "hunter"
"""A password that looks like a word: nothing but its place tells what it is."""


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        # a user and a password in one value, of programs that take them so
        (f"http -a bob:{W} GET https://h/x", "http -a bob:*** GET https://h/x"),
        (f"/usr/bin/https --auth bob:{W} h", "/usr/bin/https --auth *** h"),
        (f"xh -abob:{W} h", "xh -abob:*** h"),
        (f"http -a :{W} h", "http -a :*** h"),
        (f"ab -n 10 -A bob:{W} http://h/", "ab -n 10 -A bob:*** http://h/"),
        (f"lftp -u bob,{W} sftp://h", "lftp -u bob,*** sftp://h"),
        (f"lftp -e 'open -ubob,{W} h'", "lftp -e 'open -ubob,*** h'"),
        ("http -a localhost:8080 h", "http -a localhost:8080 h"),
        ("http -a 10.0.0.1:8080 h", "http -a 10.0.0.1:8080 h"),
        ("http -a :8080 h", "http -a :8080 h"),
        ("python main.py -a resnet:18 -A x:y -u 1,2", "python main.py -a resnet:18 -A x:y -u 1,2"),
        # a place that only a password has
        (f"mc alias set s http://h:9000 minio {W}", "mc alias set s http://h:9000 minio ***"),
        (f"/bin/mc --json alias set -q s http://h me {W} -x", None),
        (f"mc config host add s http://h minio {W}", None),
        (f"mc admin user add s bob {W}", None),
        (f"sh -c 'mc alias set s http://h minio {W} && t.py'", None),
        (f"sh -c 'mc alias set s http://h minio \"{W}\"; t.py'", None),
        (f"htpasswd -nb bob {W}", None),
        (f"htpasswd -b file bob {W}", None),
        (f"rabbitmqctl add_user bob {W}", "rabbitmqctl add_user bob ***"),
        (f"rclone obscure {W}", "rclone obscure ***"),
        ("mc cp -r data s/bucket/a b c d", "mc cp -r data s/bucket/a b c d"),
        ("t.py alias set a b c d", "t.py alias set a b c d"),
        # a name whose last word is a secret's
        (f"t.py --mysecret:{W} --mysecret {W}", "t.py --mysecret:*** --mysecret ***"),
        (f"t.py /dbpwd:{W} --app_secret={W}", "t.py /dbpwd:*** --app_secret=***"),
        (f"keytool -storepass {W} --size-password {W}", None),
        (f"t.py --secret-access-key {W} --password_2={W}", None),
        (f"t.py --token-string {W} --key-pass {W}", None),
        # a name whose last word is another noun
        *(
            (line, line)
            for line in (
                "t.py --secret-size 3 --pass-rate 0.5 --password-policy strict",
                "t.py --secret-size=3 --pass-rate=0.5 --password-policy=strict",
                "t.py --passwordPolicy strict --tokenTypes wordpiece,bpe --secret_count:3",
                "t.py model.token.dropout=0.1 auth.type=ldap key_size=2K --key-columns A,B",
                "t.py --password-file /run/secrets/pw --token-env HF_TOKEN --secret-name my-pod",
                "t.py --pass-threshold 90% --cookie-max-age 1d --high-pass 8000 --first_pass fast",
                "env PASSWORD_LENGTH=12 SECRET_TTL=24h t.py --password-min-length 8",
                'sh -c "t.py --secret-size 3 --password-policy strict"',
            )
        ),
        # which does not help a value that was drawn, or one in an address
        (f"t.py --password-file {S} --token-name={S}", "t.py --password-file *** --token-name=***"),
        (f"t.py --webhook-path /services/T0/{W}", "t.py --webhook-path ***"),
        (f"t.py --key-name {HEX}", "t.py --key-name ***"),
    ],
)
def test_a_value_is_hidden_where_its_place_or_the_noun_of_its_name_is_a_secrets(
    line: str, shown: str | None
) -> None:
    masked = masked_command(shlex.split(line))
    if shown is not None:
        assert masked == shlex.split(shown)
    assert W not in " ".join(masked)
    assert len(masked) == len(shlex.split(line))


@pytest.mark.parametrize(
    "line",
    [
        *("--auth none", "--auth=none", "--use-auth true", "--authentication kerberos"),
        *("--license MIT", "--license=apache-2.0", "--cookie off", "auth=disabled", "--oauth no"),
    ],
)
def test_which_kind_of_secret_there_is_is_none(line: str) -> None:
    assert masked_command(["t.py", *line.split()]) == ["t.py", *line.split()]


def test_a_password_is_one_whatever_it_says() -> None:
    assert masked_command(["--password", "none", "--secret=default"]) == [
        "--password",
        MASK,
        f"--secret={MASK}",
    ]


@pytest.mark.parametrize("length", [32, 40, 64])
def test_what_is_drawn_is_hidden_without_a_name(length: int) -> None:
    value = drawn(ALL, length)
    for command in (["t.py", value], ["t.py", f"--to={value}"], ["sh", "-c", f"t.py {value}"]):
        assert value not in " ".join(masked_command(command))


@pytest.mark.parametrize(
    "argument",
    [
        "9f86d081884c7d659a2feaa0c55ad0159f86d081884c7d65",
        "TransformerEngineLayerNormMLPForwardBackward2048x4096",
        "GPU-5e0a1b2c-3d4e-5f60-7182-93a4b5c6d7e8",
        "fw_conv2dForwardKernel",
        "secret_santa_2024",
        "Qwen2ForCausalLMWithValueHeadAndRewardModel7BInstructV02",
        "/data/ILSVRC2012/train/n01440764/n01440764_10026.JPEG",
    ],
)
def test_hashes_names_and_places_are_not_drawn(argument: str) -> None:
    assert masked_command(["t.py", argument]) == ["t.py", argument]


def test_few_ordinary_command_lines_are_changed() -> None:
    """False alarms, counted: a doubt is masked, but ordinary lines are to be read."""
    lines = ordinary_lines()
    assert len(lines) == len(set(lines)) == 500
    changed = [line for line in lines if masked_command(shlex.split(line)) != shlex.split(line)]
    assert changed == []
