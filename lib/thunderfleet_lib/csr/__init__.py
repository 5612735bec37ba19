"""Certificate requests of kubelets (CertificateSigningRequests): for kubelets that send them and for approvers.

names  paths, signers and groups
parse  what a request contains
rules  which serving certificates are approved, and why; pure
"""
