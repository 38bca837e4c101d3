# A substitute for the parts of nixpkgs that flake.nix uses, for packaging/test.py, which has no network. Packages are
# empty; the package of a Rust program is the file `program` beside this one, installed as the flake says.
{
  outputs =
    { self }:
    let
      lib = {
        inherit (builtins) concatStringsSep substring;
        genAttrs = names: make: builtins.listToAttrs (map (name: { inherit name; value = make name; }) names);
        getBin = package: package;
        getExe = package: "${package}/bin/${package.meta.mainProgram}";
        importTOML = file: builtins.fromTOML (builtins.readFile file);
        licenses = {
          asl20 = "Apache-2.0";
          mit = "MIT";
        };
        makeLibraryPath = packages: builtins.concatStringsSep ":" (map (package: "${package}/lib") packages);
        platforms.linux = builtins.attrNames self.legacyPackages;
      };

      make =
        system: name: script:
        derivation {
          inherit name system;
          builder = "/bin/bash";
          args = [
            "-euc"
            "export PATH=/usr/bin:/bin\n${script}"
          ];
        };

      buildRustPackage =
        system: args:
        let
          locked = (lib.importTOML args.cargoLock.lockFile).package;
          from = package: package.source or "registry+";
          strange = builtins.filter (package: builtins.substring 0 9 (from package) != "registry+") locked;
        in
        # nixpkgs requires a hash of each crate that is not from the registry.
        assert strange == [ ];
        make system "${args.pname}-${args.version}" ''
          install -D ${./program} $out/bin/${args.meta.mainProgram}
          installManPage() { install -D --mode=644 --target-directory=$out/share/man/man1 "$@"; }
          installShellCompletion() { install -D --mode=644 --target-directory=$out/share/completions "$@"; }
          ${args.postInstall}
        ''
        // {
          inherit (args) meta;
        };

      packages =
        system:
        let
          empty = name: make system name "mkdir $out";
        in
        lib.genAttrs [
          "chromium"
          "clippy"
          "curl"
          "git"
          "go"
          "haproxy"
          "installShellFiles"
          "iproute2"
          "jdk"
          "libxml2"
          "mandoc"
          "maven"
          "microsocks"
          "nghttp2"
          "nginx"
          "nodejs"
          "openssl"
          "python3"
          "redis"
          "rustfmt"
          "shellcheck"
          "tinyproxy"
          "zlib"
        ] empty
        // {
          mkShell = args: make system "shell" "echo ${toString (args.packages ++ args.inputsFrom)} ${args.LD_LIBRARY_PATH} >$out";
          rustPlatform.buildRustPackage = buildRustPackage system;
          stdenv.cc.cc = empty "cc";
        };
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] packages;
    };
}
