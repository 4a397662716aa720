"""Unpack an archive, check sums, pack anew."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile

from longrein.tasks.families.base import Draft
from longrein.tasks.families.shell.trees import folders
from longrein.tasks.families.state_test import Check, has_bytes, only, says, state_test
from longrein.tasks.families.words import words


class Archives:
    """Unpack and find what was damaged; level 2 packs the good ones anew, level 3 lists the missing, too."""

    name = "archives"
    levels = (1, 2, 3)
    needs = ("tar", "gzip")

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Names, content and damages are the secret."""
        places, names = folders(rng, 3), words(rng, rng.randint(8, 12))
        members = {f"{rng.choice(places)}{name}": f"{rng.getrandbits(80):020x}\n".encode() for name in names}
        paths = sorted(members)
        chosen = rng.sample(paths, 5)
        bad = sorted(chosen[: rng.randint(2, 3)])
        missing = sorted(chosen[3:]) if level >= 3 else []
        sums = "".join(f"{hashlib.sha256(members[path]).hexdigest()}  {path}\n" for path in paths)
        packed = {
            path: b"x" + data[1:] if path in bad else data for path, data in members.items() if path not in missing
        }
        good = {path: data for path, data in packed.items() if path not in bad}
        before: dict[str, str | bytes] = {"data.tar.gz": _archive(packed), "SHA256SUMS": sums}
        asked = (
            "Unpack data.tar.gz in a new folder data. Its files should have the sums in SHA256SUMS (paths are "
            "relative to data). Write "
            "bad.txt with the paths of those that have another one, as SHA256SUMS has them, one a line, in byte order"
        )
        checks: list[Check] = [has_bytes(f"data/{path}", data) for path, data in packed.items()]
        checks += [says("bad.txt", "".join(f"{path}\n" for path in bad)), has_bytes("SHA256SUMS", sums.encode())]
        command = (
            "mkdir data; tar -xzf data.tar.gz -C data; (cd data; sha256sum -c ../SHA256SUMS 2>/dev/null) | "
            "sed -n 's/: FAILED$//p' | LC_ALL=C sort > bad.txt"
        )
        allowed = [*before, "bad.txt", *(f"data/{path}" for path in packed)]
        if level >= 2:
            asked += ". Pack the good ones into good.tar.gz, under the same paths (without data/)"
            digests = {path: hashlib.sha256(data).hexdigest() for path, data in good.items()}
            checks.append({"kind": "archive", "path": "good.tar.gz", "members": digests})
            command += (
                "; (cd data; find . -type f | sed 's|^\\./||' | grep -vxFf ../bad.txt | tar -czf ../good.tar.gz -T -)"
            )
            allowed.append("good.tar.gz")
        if level >= 3:
            asked += ". Write missing.txt with the paths that SHA256SUMS has and the archive has not, in byte order"
            checks.append(says("missing.txt", "".join(f"{path}\n" for path in missing)))
            command += (
                "; awk '{print $2}' SHA256SUMS | while read -r p; do [ -e data/$p ] || echo $p; done | "
                "LC_ALL=C sort > missing.txt"
            )
            allowed.append("missing.txt")
        return Draft(
            secret=sums,
            prompt=f"{asked}. Leave data.tar.gz and SHA256SUMS as they are.",
            files=before,
            oracle=(command,),
            tests=state_test(*checks, only(allowed)),
            trivial={
                "only_unpacked": ("mkdir data; tar -xzf data.tar.gz -C data",),
                "nothing_is_bad": (
                    "mkdir data; tar -xzf data.tar.gz -C data; : > bad.txt; cp data.tar.gz good.tar.gz; : > "
                    "missing.txt",
                ),
                "all_are_bad": (
                    "mkdir data; tar -xzf data.tar.gz -C data; awk '{print $2}' SHA256SUMS > bad.txt; cp "
                    "data.tar.gz good.tar.gz; "
                    "cp bad.txt missing.txt",
                ),
            },
        )


def _archive(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in members.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)
