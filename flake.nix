# `nix build`, `nix run . -- --help`, `nix develop`: see docs/install.md. nixpkgs-unstable, because release branches
# may have a compiler older than Cargo.toml asks for.
{
  description = "Load testing for secure links";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      package = (lib.importTOML ./Cargo.toml).workspace.package;
      date = lib.substring 0 8 self.lastModifiedDate;

      forSystems =
        make: lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: make system nixpkgs.legacyPackages.${system});
    in
    {
      packages = forSystems (
        system: pkgs: {
          default = pkgs.rustPlatform.buildRustPackage {
            pname = "plimsoll";
            inherit (package) version;
            src = self;
            cargoLock.lockFile = ./Cargo.lock;
            cargoBuildFlags = [ "--package=plimsoll" ];
            # A build has no network and no peers to test against: `make test` runs in the development shell.
            doCheck = false;
            # What `plimsoll --version` prints: the sources that Nix builds are no clone.
            env = {
              BUILD_COMMIT = self.rev or self.dirtyRev or "not recorded";
              BUILD_DATE = lib.concatStringsSep "-" [
                (lib.substring 0 4 date)
                (lib.substring 4 2 date)
                (lib.substring 6 2 date)
              ];
            };
            nativeBuildInputs = [ pkgs.installShellFiles ];
            postInstall = ''
              $out/bin/plimsoll man man >/dev/null
              installManPage man/*.1
              for shell in bash zsh fish; do
                $out/bin/plimsoll completions $shell >plimsoll.$shell
              done
              installShellCompletion plimsoll.{bash,zsh,fish}
            '';
            meta = {
              inherit (package) description;
              license = with lib.licenses; [
                asl20
                mit
              ];
              mainProgram = "plimsoll";
              platforms = lib.platforms.linux;
            };
          };
        }
      );

      apps = forSystems (
        system: pkgs: {
          default = {
            type = "app";
            program = lib.getExe self.packages.${system}.default;
            meta = { inherit (package) description; };
          };
        }
      );

      # What tests/setup.sh looks for before `make test`.
      devShells = forSystems (
        system: pkgs: {
          default = pkgs.mkShell {
            inputsFrom = [ self.packages.${system}.default ];
            packages = map lib.getBin [
              pkgs.chromium
              pkgs.clippy
              pkgs.curl
              pkgs.git
              pkgs.go
              pkgs.haproxy
              pkgs.iproute2
              pkgs.jdk
              pkgs.libxml2
              pkgs.mandoc
              pkgs.maven
              pkgs.microsocks
              pkgs.nghttp2
              pkgs.nginx
              pkgs.nodejs
              pkgs.openssl
              pkgs.python3
              pkgs.redis
              pkgs.rustfmt
              pkgs.shellcheck
              pkgs.tinyproxy
            ];
            # Wheels of PyPI expect these libraries in the system.
            LD_LIBRARY_PATH = lib.makeLibraryPath [
              pkgs.stdenv.cc.cc
              pkgs.zlib
            ];
          };
        }
      );
    };
}
