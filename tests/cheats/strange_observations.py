"""Send observations that break whoever reads them."""
import json
import os

BAD = [
    '{"item": "a_random_life#0", "data": ' + "[" * 50000 + "]" * 50000 + "}",
    json.dumps({"item": "a_random_life#0", "data": {"array": "object", "raw": "AAAA", "shape": [1]}}),
    json.dumps({"item": "a_random_life#0", "data": {"array": "float32", "raw": "", "shape": [-1, 0]}}),
    json.dumps({"item": "a_random_life#1", "data": {"tensor": "bfloat16", "raw": "!", "shape": [10**12]}}),
    json.dumps({"item": ["a_random_life#1"], "data": {"map": [[{"map": []}, 1]]}}),
    json.dumps({"item": "labs/lab04/test_1_request.py::test_may_follow", "status": {"a": 1}}),
    json.dumps({"start": {"x": 1}}), '"text"', "[]", "nonsense", "\udc80", "9" * 5000,
]
for handle in range(3, 256):
    for line in BAD:
        try:
            os.write(handle, line.encode("utf-8", "replace") + b"\n")
        except OSError:
            break
