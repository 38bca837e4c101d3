//! Tests of the names of secrets.

use super::*;

#[test]
fn secret_names_are_recognised_by_words() {
    for name in [
        "Authorization",
        "x-api-key",
        "x-pwd",
        "x-pass",
        "PASS",
        "passphrase",
        "x-pat",
        "sid",
        "2.x-bearer",
    ] {
        assert!(is_secret_field_name(name), "{name}");
    }
    for name in [
        "accept",
        "pass-through",
        "x-bypass",
        "x-pattern",
        "x-side",
        "path",
    ] {
        assert!(!is_secret_field_name(name), "{name}");
    }
}

#[test]
fn secret_values_are_recognised_by_form() {
    for value in [
        "Bearer x",
        "basic bWU6cHc=",
        "sk-0123456789abcdefgh",
        "ghp_0123456789abcdefghij",
        "github_pat_0123456789abcdefghij",
        "eyJhbGciOiJub25lIn0.eyJhIjoxfQ.",
    ] {
        assert!(is_secret_field_value(value), "{value}");
    }
    for value in [
        "",
        "bearer",
        "Bearer {{row.token}}",
        "sk-SK,sk;q=0.9",
        "sk-SK",
        "eyJ",
        "application/json",
        "a.b.c",
        "max-age=0",
    ] {
        assert!(!is_secret_field_value(value), "{value}");
    }
}

#[test]
fn encoded_secret_parameter_names_are_recognised() {
    for name in [
        "api_key",
        "api%5Fkey",
        "%6bey",
        "pass",
        "user_pass",
        "passphrase",
        "client_assertion",
        "SAMLResponse",
        "samlResponse",
        "client_secret",
        "refresh_token",
        "id_token",
        "csrfmiddlewaretoken",
        "X-Amz-Signature",
        "X-Goog-Credential",
        "AWSAccessKeyId",
        "code_verifier",
        "JSESSIONID",
        "sort_api_key",
        "primary_key",
    ] {
        assert!(is_secret_parameter_name(name), "{name}");
    }
    for name in [
        "pass_through",
        "keyword",
        "max_tokens",
        "sort_key",
        "cacheKey",
        "token_type",
        "SignatureVersion",
        "50%",
        "a%zz",
        "%é",
    ] {
        assert!(!is_secret_parameter_name(name), "{name}");
    }
}

#[test]
fn opaque_codes_are_secret() {
    for (name, value) in [
        ("code", "4/0AX4XfWh-x_y"),
        ("code", "$CODE"),
        ("state", "af0ifjsldkjafabc"),
        ("nonce", "n-0S6_WzA2Mj"),
        ("device_code", "GmRhmhcxhwAzkoEqiMEg"),
        ("client_secret", "x"),
        ("key", "AIzaSyD-9tSrke72PouQMn"),
        ("key", "$KEY"),
        ("token_key", "x"),
    ] {
        assert!(is_secret_parameter(name, value), "{name}={value}");
    }
    for (name, value) in [
        ("code", "US"),
        ("code", "404"),
        ("state", "completed"),
        ("code", "insufficient_permissions"),
        ("state", "WAITING_FOR_APPROVAL"),
        ("key", "en"),
        ("country_code", "4/0AX4XfWh-x_y"),
        ("status_code", "af0ifjsldkjafabc"),
    ] {
        assert!(!is_secret_parameter(name, value), "{name}={value}");
    }
}

#[test]
fn data_keys_of_bodies_are_not_secret() {
    for name in [
        "api_key",
        "privateKey",
        "password",
        "client_secret",
        "key_pass",
    ] {
        assert!(is_secret_json_field(name, "x"), "{name}");
    }
    for name in [
        "key",
        "partition_key",
        "prompt_cache_key",
        "max_tokens",
        "token_type",
        "model",
    ] {
        assert!(!is_secret_json_field(name, "x"), "{name}");
    }
    let code = "4/0AX4XfWh-x_y";
    assert!(is_secret_form_field("code", code) && !is_secret_json_field("code", code));
    assert!(is_secret_json_field("mfa_code", "123456"));
    assert!(is_secret_number_name("newPassword") && !is_secret_number_name("token"));
}
