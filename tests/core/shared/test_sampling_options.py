"""The options of a command are the fields of the configuration, there and back."""

import argparse
from dataclasses import asdict, replace

import pytest

from plm_core.shared.sampling import SamplingConfig, add_options, as_arguments

OTHER = SamplingConfig(7, until_end=False, temperature=3.5, top_k=9, top_p=0.5, repetition_penalty=1.5, seed=5)


def parsed(arguments):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return vars(parser.parse_args(arguments))


@pytest.mark.parametrize("config", [SamplingConfig(), OTHER, replace(OTHER, until_end=True, top_p=1.0)])
def test_options_say_what_the_configuration_says(config):
    assert parsed([]) == asdict(SamplingConfig())
    assert SamplingConfig(**parsed(as_arguments(asdict(config)))) == config


def test_help_explains_every_option():
    parser = argparse.ArgumentParser()
    add_options(parser)
    text = " ".join(parser.format_help().split())
    assert text.count("(default: ") == len(asdict(OTHER)) - 1
    assert "--no-until-end" in text
