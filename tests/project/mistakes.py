"""What somebody types by mistake in a project of each starter, and what the line must say."""

from pathlib import Path

import small_data

HOUSES = "data=csv data.root=houses.csv data.target=price"
HEAD = "area,rooms,price\n"
MISTAKES = {
    "images": {
        "data=image_folder": "data.root is needed",
        "data=image_folder data.root=nowhere": "data.root=nowhere: no such folder",
        "data=image_folder data.root=empty": "data.root=empty: no class folder",
        "data=image_folder data.root=bare": "no image in bare/dog",
        "data=image_folder data.root=few": "2 samples",
        "data=image_folder data.root=broken strategy=ddp": "broken/cat/5.png",
        "data=image_folder data.root=broken data.channels=2": "data.channels=2: must be one of 1",
        "+data.images=nowhere": "nowhere: no such file or folder; name an image",
        "data.class_names=[a,b]": "these images are of 10 classes; give a name for each",
        "data=mnist": "use data=digits, which needs no download",
        "model=lenet data.image_size=28": "data.image_size=32",
        "model=resnet model.weights=DEFAULT": "model.weights=null",
        "model=resnet model.weights=IMAGENET": "resnet18 has IMAGENET1K_V1",
        "model=resnet model.name=resnet81": "try resnet18",
        "model=resnet model.name=squeezenet1_0": "does not end in a linear layer",
        "model=resnet model.name=vit_b_16 model.small_images=true": "only for ResNets",
        "+optimizer.lr_scale.c9=0.1 model=lenet": "optimizer.lr_scale.c9: no parameter name begins",
    },
    "segmentation": {
        "experiment=segmentation data.image_size=7": "try data.image_size=32",
        "experiment=segmentation data.held_out=[2000,1]": "cannot be split into a training part",
    },
    "text": {
        "data=text data.root=nowhere": "data.root=nowhere: no text in it; name a folder",
        "data=text data.root=empty": "data.root=empty: no text in it",
        "data=text data.root=binary strategy=ddp": "data.root=binary: no text in it",
        "data=text data.root=short": "data.root=short: 26 bytes of training text in 1 files, and a",
        "data=text data.val_fraction=0.5 data.test_fraction=0.5": "0 bytes of training text",
        "model=gpt model.heads=5": "model.heads=5: must divide model.width=64; use model.heads=4",
        "model=gpt model.context=32": "model.context=32: must be at least data.context=64",
    },
    "huggingface": {
        "data=text_blocks data.root=nowhere": "data.root=nowhere: no text in it",
        "data=text_blocks data.block_size=0": "data.block_size=0: must be a whole number from 1",
        "task=text_classification": "task: classifies, but the data have no classes",
        "data=snippets": "task: predicts the next token, but the data have classes",
        "experiment=snippets data.csv=no.csv": "data.csv=no.csv: there is no such file",
        "experiment=snippets data.csv=two.csv": "two.csv has no, yes; use 'data.labels=[no,yes]'",
        "model=pretrained model.name=none": "model.name=none: cannot be loaded",
        "data=text_blocks data.tokenizer=none": "data.tokenizer=none: cannot be loaded",
        "model=gpt2_tiny data.block_size=257": "data.block_size=257: the model knows 256 positions",
        "model=llama_tiny model.dtype=int8": "model.dtype=int8: must be one of float32",
        "+callbacks=save_pretrained checkpoint.format=sharded": "save_pretrained: saves full",
    },
    "diffusion": {
        "data=mnist": "use data=digits, which needs no download",
        "data.caption_length=8 data=digits": "data.captions=the digit zero: has 14 bytes",
        "data=digits data.val_size=2000": "1797 samples",
        "model=conv_denoiser model.patch=3 data=digits": "must divide data.image_size=8",
        "task=diffusion task.without_words=2": "task.without_words=2: must be a number from 0 to 1",
    },
    "tabular": {
        "data=csv": "data.root is needed",
        "data=csv data.root=houses.csv": "data.target is needed",
        "data=csv data.root=houses.csv data.target=prize": "has no such column, it has area, rooms",
        "data=csv data.root=empty.csv data.target=price": "has to name each column",
        "data=csv data.root=alone.csv data.target=price": "has no column beside the target",
        "data=csv data.root=gap.csv data.target=price strategy=ddp": "column rooms: '' is no",
        "data=csv data.root=short.csv data.target=price": "line 3 has 2 cells",
        "data=csv data.root=few.csv data.target=price": "3 rows cannot be split",
        f"{HOUSES} data.features=[room]": "room is no column of houses.csv",
        f"{HOUSES} data.features=[price]": "price is the target column",
        "data=csv data.root=photo.csv data.target=price": "data.root=photo.csv: cannot be read",
        "data.val_fraction=0.5 data.test_fraction=0.5": "442 rows cannot be split",
        "model.hidden=[0]": "model.hidden=[0]",
    },
    "bare": {
        "data.num_samples=0": "data.num_samples=0: must be a whole number from 10",
    },
}
BROKEN = {
    "empty.csv": "",
    "alone.csv": "price\n1\n2\n",
    "gap.csv": HEAD + "70,3,200\n80,,250\n",
    "short.csv": HEAD + "70,3,200\n80,250\n",
    "few.csv": HEAD + "70,3,200\n" * 3,
}


def write_broken(folder: Path, starter: str) -> None:
    """Files of which no run can be made as it is typed."""
    # What was read of Python's sources stays, as a download would.
    if starter in ("text", "huggingface"):
        sources = folder.with_name("sources")
        sources.mkdir(exist_ok=True)
        (folder / "data").symlink_to(sources)
    if starter == "images":
        (folder / "empty").mkdir()
        for root, count in {"few": (1, 1), "bare": (3, 0), "broken": (10, 10)}.items():
            for name, number in zip(("cat", "dog"), count, strict=True):
                small_data.write_images(folder / root / name, number)
        (folder / "broken/cat/5.png").write_bytes(b"not an image")
    elif starter == "text":
        small_data.write_texts(folder / "texts")
        for name in ("empty", "binary", "short"):
            (folder / name).mkdir()
        (folder / "binary/picture.png").write_bytes(b"\x89PNG\0\0")
        (folder / "short/alphabet.txt").write_text("abcdefghijklmnopqrstuvwxyz")
    elif starter == "huggingface":
        small_data.write_csv(folder / "two.csv")
    elif starter == "tabular":
        small_data.write_houses(folder)
        for name, text in BROKEN.items():
            (folder / name).write_text(text)
        (folder / "photo.csv").write_bytes(b"\x89PNG\xff\xfe")
