"""Gemma 4 where SGLang's model classes and configurations do not suffice.

:mod:`layers` computes a layer's result in place of SGLang's code, :mod:`schedule` decides when, where and over which rows layers run. Here:

- images: :mod:`vision` (images packed through the tower), :mod:`towers` (serving text without them);
- configurations: :mod:`config_files` (reading config.json), :mod:`text_config` and :mod:`unified_config` (in SGLang's terms),
  :mod:`model_shape` (layers, parameters and KV bytes by calculation);
- LoRA: :mod:`lora_targets` (which layers, how large), :mod:`lora_adapter` (PEFT's weights in SGLang's form);
- :mod:`dspark`: a DSpark draft's model class, :mod:`draft_classes` registers it;
- :mod:`derived`: every tensor that is derived from weights, and how it follows weight updates.
"""
