"""How `unsloth-train launch` is called, and how it calls the ranks: arguments, variables, GPUs, the files in configs/launch. No engine is needed."""

import fnmatch
import json
import os
import re
import subprocess

from launch_support import LONG_S, Launching, WithDriver
from support import FORBIDDEN, OK, PROGRAM, SOURCE, USAGE, environment, main


class Environment(Launching):
    SHOW = "import json; print(json.dumps([dict(os.environ), sys.argv[1:], sys.stdin.read(), sorted(os.sched_getaffinity(0))]))"

    def shown(self, ranks, *options, **changes):
        env = environment(**changes)
        if "OMP_NUM_THREADS" not in changes:
            del env["OMP_NUM_THREADS"]
        code, out, err = self.launch(ranks, self.SHOW, *options, "--prefix", "", env=env)
        self.assertEqual(code, OK, err)
        return sorted((json.loads(line) for line in out.splitlines()), key=lambda shown: int(shown[0]["RANK"]))

    def test_variables_of_torchrun(self):
        ranks = self.shown(
            3, RANK=9, LOCAL_RANK=9, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID="x", OTHER="kept"
        )
        for rank, (env, arguments, stdin, _) in enumerate(ranks):
            expected = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": 3,
                "LOCAL_WORLD_SIZE": 3,
                "GROUP_RANK": 0,
                "GROUP_WORLD_SIZE": 1,
                "ROLE_RANK": rank,
                "ROLE_WORLD_SIZE": 3,
                "MASTER_ADDR": "127.0.0.1",
                "TORCHELASTIC_RESTART_COUNT": 0,
                "TORCHELASTIC_MAX_RESTARTS": 0,
                "OTHER": "kept",
            }
            self.assertEqual(
                {name: env.get(name) for name in expected}, {name: str(value) for name, value in expected.items()}
            )
            self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", env)
            self.assertNotIn("TORCHELASTIC_RUN_ID", env)
            self.assertEqual((arguments, stdin), ([str(self.folder)], ""))
            self.assertEqual(env["MASTER_PORT"], ranks[0][0]["MASTER_PORT"])
        self.assertTrue(1024 <= int(ranks[0][0]["MASTER_PORT"]) <= 65535)

    def test_several_machines(self):
        ranks = self.shown(2, "--nnodes", 3, "--node_rank", 2, "--master_addr", "node0")
        self.assertEqual([shown[0]["RANK"] for shown in ranks], ["4", "5"])
        env = ranks[1][0]
        self.assertEqual(
            [
                env[n]
                for n in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
            ],
            ["1", "6", "2", "2", "node0", "29500"],
        )

    def test_the_cpus_are_shared_and_left(self):
        allowed = sorted(os.sched_getaffinity(0))
        for env, _, _, cpus in self.shown(2):
            self.assertTrue(1 <= int(env["OMP_NUM_THREADS"]) <= max(1, len(allowed) // 2))
            self.assertEqual(cpus, allowed)
        self.assertEqual([shown[0]["OMP_NUM_THREADS"] for shown in self.shown(2, OMP_NUM_THREADS=7)], ["7", "7"])

    def test_a_mask_that_was_given_is_kept(self):
        one = min(os.sched_getaffinity(0))
        code, out, err = self.launch(2, self.SHOW, "--prefix", "", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(code, OK, err)
        for line in out.splitlines():
            self.assertEqual(json.loads(line)[3], [one])

    def test_the_named_port_is_taken(self):
        self.assertEqual(self.shown(1, "--master_port", 23456)[0][0]["MASTER_PORT"], "23456")


class Arguments(Launching):
    def refuse(self, parts, *arguments, env=None):
        done = subprocess.run(
            [PROGRAM, "launch", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            env=env or environment(),
        )
        self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("error["), 1, done.stderr)
        for part in parts if isinstance(parts, list) else [parts]:
            self.assertIn(part, done.stderr)
        for word in FORBIDDEN:
            self.assertNotIn(word, done.stderr)

    def test_wrong_options(self):
        rest = ["--config", "run.json"]
        for count in ("0", "-1", "two", "", "1.5", "99999999999"):
            self.refuse(
                "--nproc_per_node: expected a number of processes from 1, or auto", "--nproc_per_node", count, *rest
            )
        self.refuse(["unknown option --nproc_per_nod", "--nproc_per_node"], "--nproc_per_nod", 2, *rest)
        self.refuse("unknown option --frobnicate", "--nproc_per_node", 2, "--frobnicate", 1)
        self.refuse("--max_restarts: expected an integer >= 0", "--max_restarts", -1, *rest)
        self.refuse("--master_port: expected", "--master_port", 70000, *rest)
        self.refuse("--nproc_per_node needs a value", "--nproc_per_node")
        self.refuse("launch needs the ranks' command line", "--nproc_per_node", 2)
        self.refuse("Options of launch come first", "--nproc_per_node", 2, "train", "--r", 4, "--max_restarts", 3)
        self.refuse(
            "score runs in one process",
            "--nproc_per_node",
            2,
            "score",
            "--model.path",
            "m",
            "--data.train_file",
            "t",
            "--out",
            "o",
        )
        self.refuse(
            "launch runs in one process", "--nproc_per_node", 2, "--", "launch", "--nproc_per_node", 2, "config"
        )
        self.refuse("data augment runs in one process", "--nproc_per_node", 2, "data", "augment", "--out", "o")

    def test_commands_of_one_process_refuse_a_launchers_ranks(self):
        for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
            for number, code in ((2, USAGE), (1, 3)):  # 3: there is no such model
                done = subprocess.run(
                    [PROGRAM, "generate", "--model.path", "/nonexistent", "--prompt", "x", "--device", "cpu"],
                    capture_output=True,
                    text=True,
                    timeout=LONG_S,
                    env=environment(**{name: number}),
                )
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertEqual("generate runs in one process, and a launcher started 2" in done.stderr, number == 2)
        done = subprocess.run(
            [PROGRAM, "data", "augment", "--out", "o"], capture_output=True, text=True, env=environment(WORLD_SIZE=2)
        )
        self.assertIn("data augment runs in one process, and a launcher started 2", done.stderr)

    def test_mistakes_of_the_ranks_are_said_once(self):
        self.refuse("/nonexistent.json", "--nproc_per_node", 2, "--config", "/nonexistent.json")
        self.refuse("/nonexistent.json", "--nproc_per_node", 2, "--", "train", "--config", "/nonexistent.json")
        self.refuse(
            ["unknown option --learning_rat", "--training.learning_rate"],
            "--nproc_per_node",
            2,
            "--",
            "--learning_rat",
            1,
        )
        self.refuse("train needs --model.path", "--nproc_per_node", 2, "train", "--r", 4)
        self.refuse("unknown command 'trian'", "--nproc_per_node", 2, "trian")

    def test_several_machines(self):
        rest = ["config"]
        self.refuse("need --node_rank", "--nproc_per_node", 1, "--nnodes", 2, "--master_addr", "a", *rest)
        self.refuse("need --master_addr", "--nproc_per_node", 1, "--nnodes", 2, "--node_rank", 0, *rest)
        self.refuse("need --nproc_per_node", "--nnodes", 2, "--node_rank", 0, "--master_addr", "a", *rest)
        self.refuse(
            "machines are counted from 0",
            "--nproc_per_node",
            1,
            "--nnodes",
            2,
            "--node_rank",
            2,
            "--master_addr",
            "a",
            *rest,
        )
        self.refuse(
            "torchrun",
            "--nproc_per_node",
            1,
            "--nnodes",
            2,
            "--node_rank",
            0,
            "--master_addr",
            "a",
            "--max_restarts",
            1,
            *rest,
        )

    def test_no_such_program(self):
        self.refuse(
            "cannot start /nonexistent/rank: No such file", "--nproc_per_node", 2, "--program", "/nonexistent/rank"
        )
        self.refuse("Permission denied", "--nproc_per_node", 2, "--program", SOURCE / "README.md")

    def test_processes_and_gpus(self):
        self.refuse("each process takes one", "--nproc_per_node", 4096, "config", "--device", "cuda")
        self.refuse(
            "all would take the same GPU" if self.gpus() >= 2 else "each process takes one",
            "--nproc_per_node",
            2,
            "config",
            "--device",
            "cuda:0",
        )
        self.refuse("no GPU to count processes by", "config", "--device", "cpu")
        self.refuse("no GPU", "config", env=environment(CUDA_VISIBLE_DEVICES=""))

    def gpus(self):
        return len([f for f in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", f)])

    def test_this_program_s_own_commands(self):
        for form in (["config", "--r", "4"], ["--", "config", "--r", "4"]):
            done = subprocess.run(
                [PROGRAM, "launch", "--nproc_per_node", "2", *form, "--device", "cpu"],
                capture_output=True,
                text=True,
                timeout=LONG_S,
            )
            self.assertEqual(done.returncode, OK, done.stderr)
            for rank in (0, 1):
                text = "".join(
                    line[len("[rank 0] ") :] + "\n"
                    for line in done.stdout.splitlines()
                    if line.startswith(f"[rank {rank}] ")
                )
                self.assertEqual(json.loads(text)["lora"]["r"], 4)

    def test_the_script_takes_the_same_flags(self):
        script = SOURCE / "scripts" / "launch.sh"
        done = subprocess.run(
            [
                script,
                "--nproc_per_node",
                "2",
                "--master_port",
                "23457",
                "--program",
                PROGRAM,
                "config",
                "--device",
                "cpu",
            ],
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("[rank 1] ", done.stdout)
        missing = subprocess.run(
            [script, "--nproc_per_node", "2", "--program", "/nonexistent", "config"], capture_output=True, text=True
        )
        self.assertEqual(missing.returncode, USAGE)
        self.assertIn("there is no program /nonexistent", missing.stderr)

    def test_help(self):
        done = subprocess.run([PROGRAM, "launch", "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, OK)
        for word in ("--nproc_per_node", "--max_restarts", "--grace_period", "--no_pin"):
            self.assertIn(word, done.stdout)


class CommittedFiles(Launching):
    """configs/launch/ names options of launch and variables of the ranks: they must stay right."""

    FOLDER = SOURCE / "configs" / "launch"

    def shim(self, name, text):
        file = self.folder / name
        file.write_text("#!/bin/sh\n" + text)
        file.chmod(0o755)

    def run_with_shims(self, *command, **changes):
        env = environment(PATH=f"{self.folder}:{os.environ['PATH']}", **changes)
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LONG_S, env=env)
        self.assertEqual(done.returncode, OK, done.stderr)
        return done.stdout

    def test_slurm(self):
        self.shim("scontrol", '[ "$1 $2" = "show hostnames" ] && echo "${3%%[*}1"; echo other')
        self.shim("srun", 'echo "$@"; echo "$MASTER_ADDR:$MASTER_PORT $OMP_NUM_THREADS ${#UNSLOTH_SECRET}"')
        out = self.run_with_shims(
            "bash",
            self.FOLDER / "slurm.sbatch",
            "run.json",
            "--r",
            "4",
            SLURM_JOB_ID=1234567,
            SLURM_JOB_NODELIST="gpu[1-2]",
            SLURM_CPUS_PER_TASK=12,
            UNSLOTH_TRAIN="prog",
        )
        self.assertRegex(out, r"--kill-on-bad-exit=0 .* prog train --config run\.json --r 4\n")
        self.assertIn(f"gpu1:{20000 + 1234567 % 20000} 12 64\n", out)

    def test_torchrun(self):
        self.shim("torchrun", 'echo "$@"')
        out = self.run_with_shims(
            "bash", self.FOLDER / "torchrun.sh", "run.json", "--r", "4", NODES=2, HEAD="node0", UNSLOTH_TRAIN="prog"
        )
        self.assertRegex(
            out,
            r"^--no-python --nnodes 2 --nproc_per_node gpu .*--rdzv_endpoint node0:29400 .* prog train --config run\.json --r 4\n$",
        )

    def test_kubernetes(self):
        text = (self.FOLDER / "pytorchjob.yaml").read_text()
        command = " ".join(re.search(r"- >-\n(.*?)\n +env:", text, re.DOTALL)[1].split())
        self.assertIn(" -- train --config /config/run.json ", command)
        self.shim("unsloth-train", f'exec {PROGRAM} "$@"')
        out = self.run_with_shims(
            "/bin/sh",
            "-c",
            command.replace("--nproc_per_node 8", "--nproc_per_node 2").split(" -- ")[0] + " -- config --device cpu",
            NODES=2,
            RANK=1,
            MASTER_ADDR="host",
            MASTER_PORT=23456,
        )
        self.assertIn("[rank 2] {", out)
        self.assertIn("[rank 3] {", out)
        # Workers and the master together are the machines.
        replicas = [int(n) for n in re.findall(r"replicas: (\d+)", text)]
        self.assertEqual(sum(replicas), int(re.search(r'name: NODES.*\n +value: "(\d+)"', text)[1]))

    def test_a_plain_job(self):
        text = (self.FOLDER / "job.yaml").read_text()
        words = [word.strip(' "') for word in re.search(r" args: \[(.*)\]", text)[1].split(",")]
        processes = words[words.index("--nproc_per_node") + 1]
        self.assertEqual(re.search(r"nvidia\.com/gpu: (\d+)", text)[1], processes)
        own, train = words[: words.index("--")], words[words.index("--") + 1 :]
        self.assertEqual((own[0], train[0]), ("launch", "train"))
        config = self.folder / "run.json"
        config.write_text('{"model": {"path": "m"}}')
        own[own.index(processes)] = "2"
        train[train.index("/config/run.json")] = config
        out = self.run_with_shims(PROGRAM, *own, "--", "config", *train[1:], "--device", "cpu")
        self.assertIn('[rank 1]     "resume_from_checkpoint": "auto"', out)
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout.split()[1]
        self.assertIn(f"unsloth-train:{version}\n", text)

    def test_a_service(self):
        text = (self.FOLDER / "serve.yaml").read_text()
        words = re.findall(r"^ +(?:# )?- (serve|--\S+)", text, re.MULTILINE)
        self.assertEqual(words[0], "serve")
        options = dict(word[2:].split("=", 1) for word in words[1:])
        usage = subprocess.run([PROGRAM, "help", "serve"], capture_output=True, text=True).stdout
        for option in options:
            self.assertIn(f"  --{option} ", usage)
        # Probes ask for what the service answers, and nobody kills what may still end.
        routes = (SOURCE / "docs" / "how-to" / "serve.md").read_text()
        probes = re.findall(r"(\w+)Probe:.*\n +httpGet: \{path: (/\w+), port: http\}", text)
        self.assertEqual(dict(probes), {"readiness": "/ready", "liveness": "/health"})
        for _, path in probes:
            self.assertIn(f"`GET {path}`", routes)
        self.assertEqual(set(re.findall(r"(?:containerPort|\bport): (\d+)", text)), {options["port"]})
        grace = float(re.search(r"terminationGracePeriodSeconds: (\d+)", text)[1])
        self.assertGreater(grace, float(options["drain_delay"]) + float(options["shutdown_timeout"]))
        # Each file that an option names is on a volume, and each volume is there.
        mounts = dict(re.findall(r"- \{name: (\w+), mountPath: (/\w+)", text))
        for option in ("model.path", "adapter", "api_key_file", "tls_cert", "tls_key"):
            folder = options[option].split("=")[-1].split("/")[1]
            self.assertIn(f"/{folder}", mounts.values(), option)
        for name in mounts:
            self.assertRegex(text, rf"(?m)- \{{?name: {name}(?:$|, secret)")
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout.split()[1]
        self.assertIn(f"unsloth-train:{version}\n", text)

    def test_images_and_their_files(self):
        """What the compose files and the Dockerfile name is there."""
        compose = (self.FOLDER / "compose.yaml").read_text()
        (service, words) = re.search(r"run --rm (\S+) (.*)\n", compose).groups()
        self.assertRegex(compose, rf"(?m)^  {service}:$")
        done = subprocess.run([PROGRAM, *words.split(), "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, OK, done.stderr)
        image = re.search(r" image: (.*)", compose)[1]
        dockerfile = (self.FOLDER / "Dockerfile").read_text()
        self.assertIn(f"-t {image} dist", dockerfile)
        package = re.search(
            r"^name=(\S+)-\$version(\S+)$", (SOURCE / "scripts" / "package.sh").read_text(), re.MULTILINE
        )
        self.assertTrue(fnmatch.fnmatch(f"{package[1]}-1{package[2]}.tar.gz", re.search(r"ADD (\S+)", dockerfile)[1]))
        grafana = SOURCE / "configs" / "grafana"
        mounts = re.findall(r"- \./(\S+):(\S+):ro", (grafana / "compose.yaml").read_text())
        self.assertEqual({name for name, _ in mounts}, {f.name for f in grafana.iterdir()} - {"compose.yaml"})
        boards = re.search(r"path: (\S+)", (grafana / "dashboards.yml").read_text())[1]
        self.assertIn(("unsloth-train.json", f"{boards}/unsloth-train.json"), mounts)
        options = (SOURCE / "docs" / "reference" / "options" / "logging.md").read_text()
        port = re.search(r"targets: \[\"\S+:(\d+)\"\]", (grafana / "prometheus.yml").read_text())[1]
        self.assertRegex(options, rf"`metrics_port` .* or {port} where")


class Gpus(WithDriver):
    def count(self, *arguments, **changes):
        done = subprocess.run(
            [PROGRAM, "launch", *arguments, "config", "--device", "cuda"],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            env=self.with_driver(**changes),
        )
        return len({line.split("]")[0] for line in done.stdout.splitlines()}) if done.returncode == OK else done.stderr

    def test_a_process_a_gpu(self):
        self.assertEqual(self.count(), 2)
        self.assertEqual(self.count("--nproc_per_node", "auto"), 2)
        self.assertEqual(self.count("--nproc_per_node", "1"), 1)
        self.assertIn("this machine shows 2 GPU(s)", self.count("--nproc_per_node", "3"))
        self.assertEqual(self.count(CUDA_VISIBLE_DEVICES="1"), 1)
        self.assertEqual(self.count(CUDA_VISIBLE_DEVICES="GPU-2,0"), 2)
        self.assertIn("shows 1 GPU(s)", self.count("--nproc_per_node", "2", CUDA_VISIBLE_DEVICES="1,-1,0"))
        self.assertIn("no GPU", self.count(CUDA_VISIBLE_DEVICES=""))


if __name__ == "__main__":
    main()
