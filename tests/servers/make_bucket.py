"""Makes a bucket over S3. Run by the Python of `.servers/`, with the keys in the environment.

python make_bucket.py ENDPOINT BUCKET
"""

from __future__ import annotations

import sys

import boto3

boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1").create_bucket(Bucket=sys.argv[2])
